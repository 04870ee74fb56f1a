/* SPDX-License-Identifier: MIT */
#include "sim_kernel.h"

#include <string.h>

#include "sim_base.h"

struct sim_kernel {
	const char *name;
	const char *sizes; /* bytes of each argument, as digits */
	void (*run)(const struct sim_op *op);
	void (*touch)(struct sim_op *op);
};

static void add_touch(struct sim_op *op, uint64_t addr, uint64_t size,
		      bool write)
{
	op->touch[op->n_touch++] = (struct sim_extent){
		.addr = addr,
		.size = size,
		.write = write,
	};
}

/* Memory that a data race of the program may reach: no plain access. */
static uint32_t load(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store(uint32_t *p, uint32_t value)
{
	__atomic_store_n(p, value, __ATOMIC_RELAXED);
}

/* vs_fill(u64 ptr, u32 value, u64 n_words) */
static void touch_first(struct sim_op *op)
{
	add_touch(op, op->u.args[0], 4 * op->u.args[2], true);
}

static void fill(uint64_t ptr, uint32_t value, uint64_t n)
{
	uint32_t *p = (uint32_t *)ptr;
	uint64_t i;

	for (i = 0; i < n; i++)
		store(&p[i], value);
}

static void run_fill(const struct sim_op *op)
{
	fill(op->u.args[0], (uint32_t)op->u.args[1], op->u.args[2]);
}

/* vs_add(u64 ptr, u32 delta, u64 n_words) */
static void run_add(const struct sim_op *op)
{
	uint32_t *p = (uint32_t *)op->u.args[0];
	uint64_t i;

	for (i = 0; i < op->u.args[2]; i++)
		store(&p[i], load(&p[i]) + (uint32_t)op->u.args[1]);
}

/* vs_check(u64 ptr, u32 value, u64 n_words, u64 out_count_ptr) */
static void touch_check(struct sim_op *op)
{
	add_touch(op, op->u.args[0], 4 * op->u.args[2], false);
	add_touch(op, op->u.args[3], sizeof(uint64_t), true);
}

static void run_check(const struct sim_op *op)
{
	const uint32_t *p = (const uint32_t *)op->u.args[0];
	uint64_t i, n = 0;

	for (i = 0; i < op->u.args[2]; i++)
		n += load(&p[i]) != (uint32_t)op->u.args[1];
	if (n)
		__atomic_add_fetch((uint64_t *)op->u.args[3], n,
				   __ATOMIC_RELAXED);
}

/* vs_copy(u64 dst, u64 src, u64 n_words) */
static void touch_copy(struct sim_op *op)
{
	add_touch(op, op->u.args[0], 4 * op->u.args[2], true);
	add_touch(op, op->u.args[1], 4 * op->u.args[2], false);
}

static void run_copy(const struct sim_op *op)
{
	uint32_t *dst = (uint32_t *)op->u.args[0];
	const uint32_t *src = (const uint32_t *)op->u.args[1];
	uint64_t i;

	for (i = 0; i < op->u.args[2]; i++)
		store(&dst[i], load(&src[i]));
}

/* vs_spin_flag(u64 host_flag_ptr): until *flag != 0 */
static void touch_flag(struct sim_op *op)
{
	op->delay = SIM_DELAY_FLAG;
	op->delay_arg = op->u.args[0];
	add_touch(op, op->u.args[0], sizeof(uint32_t), false);
}

/* vs_sleep(u64 nanoseconds, u64 ptr, u32 value, u64 n_words): then fill */
static void touch_sleep(struct sim_op *op)
{
	op->delay = SIM_DELAY_TIME;
	op->delay_arg = op->u.args[0];
	add_touch(op, op->u.args[1], 4 * op->u.args[3], true);
}

static void run_sleep(const struct sim_op *op)
{
	fill(op->u.args[1], (uint32_t)op->u.args[2], op->u.args[3]);
}

static const struct sim_kernel kernels[] = {
	{"vs_fill", "848", run_fill, touch_first},
	{"vs_add", "848", run_add, touch_first},
	{"vs_check", "8488", run_check, touch_check},
	{"vs_copy", "888", run_copy, touch_copy},
	{"vs_spin_flag", "8", NULL, touch_flag},
	{"vs_sleep", "8848", run_sleep, touch_sleep},
};

/* An .entry in PTX that the simulator knows nothing about. */
static const struct sim_kernel unknown = {"unknown", "", NULL, NULL};

const struct sim_kernel *sim_kernel_find(const char *name)
{
	unsigned i;

	for (i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return &unknown;
}

/* The packed buffer among the extra options, or NULL. */
static const unsigned char *packed(void **extra)
{
	const unsigned char *buffer = NULL;

	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
	return buffer;
}

static uint64_t read_arg(const void *p, size_t size)
{
	uint64_t value = 0;

	memcpy(&value, p, size); /* little-endian, as all hosts here */
	return value;
}

bool sim_kernel_bind(const struct sim_kernel *kernel, void **params,
		     void **extra, struct sim_op *op)
{
	const unsigned char *buffer = packed(extra);
	size_t i, size, offset;

	op->name = kernel->name;
	if (kernel->sizes[0] && !params && !buffer)
		return false;
	for (i = 0; sim_kernel_param(kernel, i, &offset, &size); i++)
		op->u.args[i] =
			read_arg(params ? params[i] : buffer + offset, size);
	if (kernel->touch)
		kernel->touch(op);
	if (sim_config.backing)
		op->run = kernel->run;
	return true;
}

bool sim_kernel_param(const struct sim_kernel *kernel, size_t index,
		      size_t *offset, size_t *size)
{
	size_t i, width = 0, end = 0;

	if (index >= strlen(kernel->sizes))
		return false;
	for (i = 0; i <= index; i++) {
		width = (size_t)(kernel->sizes[i] - '0');
		end = sim_round_up(end, width) + width;
	}
	*offset = end - width;
	if (size)
		*size = width;
	return true;
}
