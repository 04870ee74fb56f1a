/* SPDX-License-Identifier: MIT
 *
 * sequence SEED [N_OPS]: calls of the driver at random, one line for each
 * operation: its number, name, arguments and answers; objects by their numbers,
 * never addresses, handles or times. All of it must be the same without and
 * with the shim (sequence.test, tests/gpu/sequence). A line with WRONG tells of
 * data that is not what it must be.
 *
 * Three threads take turns, each with its own stack of contexts. Nothing is
 * done that is undefined by CUDA's rules or known to differ (README.md,
 * Limits).
 */
#include "sequence.h"

static const struct {
	const char *name;
	uint32_t weights[2]; /* the second: while it captures */
	void (*run)(void);
} operations[] = {
#define X(name, weight, within) {#name, {weight, within}, op_##name},
	OPERATIONS(X)
#undef X
};

CUresult say(CUresult result)
{
	printf(": %s", victim_name(result));
	return result;
}

CUresult also(const char *what, CUresult result)
{
	printf("; %s", what);
	return say(result);
}

void *find(const char *name, int version)
{
	CUdriverProcAddressQueryResult found;
	void *address = NULL;

	if (cuGetProcAddress_v2(
		    name, &address, version,
		    IS_PER_THREAD
			    ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
			    : 0,
		    &found) != CUDA_SUCCESS)
		address = NULL;
	printf(" %s %d", name, version);
	if (!address)
		printf(" is not there");
	return address;
}

static void one_operation(void)
{
	int which = is_capturer() && chance(3) > 0;
	uint32_t sum = 0, at;
	size_t i;

	for (i = 0; i < sizeof(operations) / sizeof(*operations); i++)
		sum += operations[i].weights[which];
	at = chance(sum);
	if (chance(3) > 0)
		enter();
	for (i = 0; at >= operations[i].weights[which]; i++)
		at -= operations[i].weights[which];
	printf(" %s", operations[i].name);
	fflush(stdout); /* so that it is seen of what a program ends */
	operations[i].run();
}

/* Its work goes on; another comes in its place. */
void op_thread_end(void)
{
	if (is_capturer())
		return;
	end_this_thread();
	leave();
}

static void set_primary(void)
{
	TRY(cuCtxSetCurrent(contexts[PRIMARY].handle));
}

static void end_captures(void)
{
	set_primary();
	end_own_captures();
}

/* Everything is looked at, and freed. */
static void finish(void)
{
	CUresult result;

	set_primary();
	for (struct block *b = blocks + 1; b < blocks + N_BLOCKS; b++) {
		unsigned char *data;

		if (b->kind == NONE || !settle(b))
			continue;
		data = malloc(b->size);
		CHECK(data);
		TRY(cuMemcpy((CUdeviceptr)(uintptr_t)data, b->p, b->size));
		printf("b%d of %zu:", b->serial, b->size);
		look_at(b, data, 0, b->size);
		result = b->kind == HOST
				 ? cuMemFreeHost((void *)(uintptr_t)b->p)
				 : cuMemFree(b->p);
		say(result);
		printf("\n");
		if (result == CUDA_SUCCESS)
			forget_block(b);
		free(data);
	}
	for (int i = 0; i < N_CTX; i++) {
		if (!contexts[i].handle)
			continue;
		TRY(cuCtxSetCurrent(contexts[i].handle));
		TRY(cuCtxSynchronize());
	}
}

static void start(void)
{
	int n_devices;

	contexts[PRIMARY].handle = victim_start(0);
	for (int i = 0; i < N_CTX; i++)
		TRY(cuDeviceGet(&contexts[i].device, 0));
	/* one of the others' is another device's, where there is one */
	TRY(cuDeviceGetCount(&n_devices));
	TRY(cuDeviceGet(&contexts[GREEN - 1].device, n_devices > 1));
	make_pool();
	add_constant(PRIMARY);
	printf("\n");
}

int main(int argc, char **argv)
{
	int n_ops = argc > 2 ? atoi(argv[2]) : 300;
	bool is_right;

	if (argc < 2)
		return 2;
	set_seed(argv[1]);
	start();
	start_threads();
	give_each(enter);
	give_turns(n_ops, one_operation);
	give_each(end_captures);
	printf("\n");
	give_turn(0, finish);
	is_right = report();
	end_threads();
	return is_right ? 0 : 1;
}
