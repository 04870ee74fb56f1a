/* SPDX-License-Identifier: MIT
 *
 * victim_limits WHAT: a program that has its limits.
 *
 *   space, data    address space (ulimit -v) or data (ulimit -d) is limited: it
 *                  uses CUDA, and most of what it may have for itself
 *   tight          address space is limited to little more than it wants
 *   little         data is limited to less than the pool's tables
 *   locked         keeps all its memory resident
 *   devices        uses all devices, and a good part of the machine's addresses
 *   taken          has most addresses itself, uses all devices, and maps more
 *   nearly         has nearly all
 *   small, middle  address space is limited to much: it fills the device with
 *                  blocks of one size
 *   few            fills the device with small blocks, for which the pool has
 *                  too few addresses; most of those cost no more for that
 *   hole           asks for more than any hole of its addresses, again and
 *                  again; what does fit is the pool's all the same
 *   all            takes all that is free in one piece
 *   core           looks at what a debugger would write of it (gcore)
 */
#include <sys/mman.h>
#include <sys/resource.h>

#include "blocks.h"
#include "victim_link.h"

#define GiB ((size_t)1 << 30)

/* A line of /proc/self/status, in bytes. */
static size_t status(const char *name)
{
	FILE *file = fopen("/proc/self/status", "r");
	size_t length = strlen(name), size = 0;
	char line[256];

	CHECK(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, length))
			size = strtoul(line + length, NULL, 10) * KiB;
	fclose(file);
	CHECK(size > 0);
	return size;
}

/* The process may have `room` more than now, the program wants `own` of it. */
static void use(int resource, size_t now, size_t room, size_t own, int access)
{
	struct rlimit limit = {now + room, now + room};
	CUdeviceptr p;
	void *mine;

	CHECK(setrlimit(resource, &limit) == 0);
	victim_start(0);
	p = victim_alloc(64 * MiB);
	TRY(cuMemsetD8(p, 7, 64 * MiB));
	mine = mmap(NULL, own, access,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(mine != MAP_FAILED);
	CHECK(victim_is_filled(p, 64 * MiB, 7));
	victim_free(p);
	munmap(mine, own);
}

static void use_locked(void)
{
	size_t before;
	CUdeviceptr p;

	if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
		return; /* it may not */
	before = status("VmRSS:");
	victim_start(0);
	p = victim_alloc(MiB);
	CHECK(status("VmRSS:") - before < 128 * MiB);
	victim_free(p);
}

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static void use_devices(size_t own)
{
	void *mine;
	int n;

	TRY(cuInit(0));
	TRY(cuDeviceGetCount(&n));
	for (int i = 0; i < n; i++) {
		victim_start(i);
		victim_alloc(3 * MiB);
	}
	mine = map(own);
	CHECK(mine);
	munmap(mine, own);
}

/* No more than `room` is left of the addresses, in one piece. */
static void use_devices_in(size_t room, size_t own)
{
	void *hole = map(room);

	CHECK(hole);
	for (size_t size = (size_t)1 << 46; size >= MiB; size /= 2)
		while (map(size))
			;
	munmap(hole, room);
	use_devices(own);
}

/* All of them the pool's, if there is one. */
static void fill(size_t size)
{
	struct rlimit limit = {4096 * GiB, 4096 * GiB};
	size_t available, total;
	long n = 0;

	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	victim_start(0);
	TRY(cuMemGetInfo(&available, &total));
	for (; (size_t)(n + 1) * size < total / 16 * 15; n++)
		victim_alloc(size);
	CHECK(pool_blocks() == n || pool_blocks() == -1);
}

static _Atomic long n_markers;

static void hear(const char *call)
{
	n_markers += !strcmp(call, "cuCtxRecordEvent");
}

static void fill_more(void)
{
	size_t available, total;
	CUdeviceptr p;
	long n = 0;

	victim_start(0);
	TRY(cuMemGetInfo(&available, &total));
	sim_client_on_call(hear);
	while ((size_t)n * 64 * KiB < available / 16 * 15 &&
	       cuMemAlloc(&p, 64 * KiB) == CUDA_SUCCESS)
		n++;
	sim_client_on_call(NULL);
	CHECK((size_t)n * 64 * KiB >= available / 16 * 15);
	CHECK(pool_blocks() < n); /* else there were enough */
	CHECK(n_markers < n / 8);
}

/* Those of the small blocks that the pool has no addresses for take no more. */
static void fill_between(void)
{
	enum { N = 32, N_SMALL = 28000 };
	CUdeviceptr p[N];

	victim_start(0);
	victim_free(victim_alloc(N * 32 * MiB));
	for (int i = 0; i < N; i++)
		p[i] = victim_alloc(32 * MiB);
	for (int i = 0; i < N; i += 2)
		victim_free(p[i]);
	TRY(cuCtxSynchronize());
	for (int i = 0; i < N_SMALL; i++)
		victim_alloc(64 * KiB);
	CHECK(pool_blocks() < N_SMALL); /* else there were enough */
	for (int i = 0; i < N; i += 2)
		p[i] = victim_alloc(32 * MiB);
	for (int i = 0; i < 35; i++)
		victim_alloc(32 * MiB);
}

/* Of so many blocks every sixth one stays. */
static void ask_too_much(void)
{
	enum { N = 58 };
	CUdeviceptr p[N], much, q[4];
	long n_before;

	victim_start(0);
	for (int i = 0; i < N; i++)
		p[i] = victim_alloc(32 * MiB);
	for (int i = 0; i < N; i++)
		if (i % 6 != 5)
			victim_free(p[i]);
	TRY(cuCtxSynchronize());
	for (int i = 0; i < 20; i++) {
		much = victim_alloc(900 * MiB);
		n_before = pool_blocks();
		for (int k = 0; k < 4; k++)
			q[k] = victim_alloc(40 * MiB);
		CHECK(pool_blocks() == n_before + 4 || n_before == -1);
		for (int k = 0; k < 4; k++)
			victim_free(q[k]);
		victim_free(much);
	}
}

static void take_all(void)
{
	size_t available, total;

	victim_start(0);
	TRY(cuMemGetInfo(&available, &total));
	victim_free(victim_alloc(available));
}

/* Of each mapping the first line tells its addresses, the last its flags. */
static int vast_mappings_in_a_core(void)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	unsigned long first, last;
	size_t size = 0;
	char line[512];
	int n = 0;

	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
			size = last - first;
		else if (!strncmp(line, "VmFlags:", 8))
			n += size >= 1024 * GiB && !strstr(line, " dd");
	}
	fclose(file);
	return n;
}

static void look_at_core(void)
{
	CUdeviceptr p;

	victim_start(0);
	p = victim_alloc(MiB);
	printf("a TiB and more: %d\n", vast_mappings_in_a_core());
	victim_free(p);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (!strcmp(argv[1], "space"))
		use(RLIMIT_AS, status("VmSize:"), 64 * GiB, 44 * GiB,
		    PROT_NONE);
	else if (!strcmp(argv[1], "tight"))
		use(RLIMIT_AS, status("VmSize:"), 6 * GiB, 4 * GiB + GiB / 2,
		    PROT_NONE);
	else if (!strcmp(argv[1], "small"))
		fill(64 * KiB);
	else if (!strcmp(argv[1], "middle"))
		fill(4 * MiB);
	else if (!strcmp(argv[1], "few"))
		fill_more();
	else if (!strcmp(argv[1], "between"))
		fill_between();
	else if (!strcmp(argv[1], "hole"))
		ask_too_much();
	else if (!strcmp(argv[1], "all"))
		take_all();
	else if (!strcmp(argv[1], "core"))
		look_at_core();
	else if (!strcmp(argv[1], "locked"))
		use_locked();
	else if (!strcmp(argv[1], "devices"))
		use_devices(16384 * GiB);
	else if (!strcmp(argv[1], "taken"))
		use_devices_in(512 * GiB, 100 * GiB);
	else if (!strcmp(argv[1], "nearly"))
		use_devices_in(24 * GiB, 10 * GiB);
	else if (!strcmp(argv[1], "little"))
		use(RLIMIT_DATA, status("VmData:"), 140 * MiB, 60 * MiB,
		    PROT_READ | PROT_WRITE);
	else
		use(RLIMIT_DATA, status("VmData:"), 384 * MiB, 192 * MiB,
		    PROT_READ | PROT_WRITE);
	printf("used\n");
	return 0;
}
