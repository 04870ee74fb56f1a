/* SPDX-License-Identifier: MIT
 *
 * guard_victim: a program with the mistake that its argument names, or with
 * none (ok). Prints what the next wait for the GPU answers.
 */
#include "victim_link.h"

#define SIZE (700 * KiB)
#define SMALL ((size_t)1000) /* 24 bytes are left up to 1024 */

static CUstream stream;

static void fill(CUdeviceptr p, size_t bytes)
{
	uint32_t value = 0x1234;
	uint64_t n_words = bytes / 4;
	void *arguments[] = {&p, &value, &n_words};

	victim_launch(victim_kernel("vs_fill"), stream, arguments);
}

static void check(CUdeviceptr p, size_t bytes, CUdeviceptr count)
{
	uint32_t value = 0x1234;
	uint64_t n_words = bytes / 4;
	void *arguments[] = {&p, &value, &n_words, &count};

	victim_launch(victim_kernel("vs_check"), stream, arguments);
}

/* Takes some milliseconds, then fills. */
static void fill_slowly(CUdeviceptr p, size_t bytes)
{
	uint32_t value = 0x1234;
	uint64_t ns = 5000000, n_words = bytes / 4;
	void *arguments[] = {&ns, &p, &value, &n_words};

	victim_launch(victim_kernel("vs_sleep"), stream, arguments);
}

/* To the last byte, and frees under work: all of it is allowed. */
static CUresult ok(void)
{
	static const size_t sizes[] = {4, 512, 1000, 100 * KiB, 3 * MiB};
	CUdeviceptr p[5];

	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 5; i++) {
			p[i] = victim_alloc(sizes[i]);
			fill(p[i], sizes[i]);
		}
		for (int i = 0; i < 5; i++) {
			fill_slowly(p[i], sizes[i]);
			victim_free(p[i]);
		}
	}
	return cuCtxSynchronize();
}

static CUresult overrun(void)
{
	CUdeviceptr p = victim_alloc(SIZE);

	fill(p, SIZE + 4096);
	return cuCtxSynchronize();
}

static CUresult overrun_read(void)
{
	CUdeviceptr p = victim_alloc(SIZE), count = victim_alloc(8);

	fill(p, SIZE);
	TRY(cuCtxSynchronize());
	check(p, SIZE + 4, count);
	return cuCtxSynchronize();
}

static CUresult after_free(void)
{
	CUdeviceptr p = victim_alloc(SIZE), q = victim_alloc(SIZE);

	fill_slowly(p, SIZE);
	victim_free(p);
	fill(q, SIZE);
	fill(p, SIZE);
	return cuCtxSynchronize();
}

/* Too little to reach unmapped memory. */
static CUresult overrun_few(void)
{
	CUdeviceptr p = victim_alloc(SMALL);

	fill(p, SMALL + 12);
	victim_free(p);
	return cuCtxSynchronize();
}

static unsigned byte_of(CUdeviceptr p, size_t size)
{
	unsigned char *host = malloc(size);
	unsigned byte;

	CHECK(host);
	TRY(cuMemcpyDtoH(host, p, size));
	byte = host[0];
	for (size_t i = 1; i < size; i++)
		CHECK(host[i] == byte);
	free(host);
	return byte;
}

/* Reads what was never written, and what was freed after slow work. */
static CUresult stale(void)
{
	static const size_t sizes[] = {1000, SIZE, 3 * MiB};

	for (int i = 0; i < 3; i++) {
		CUdeviceptr p = victim_alloc(sizes[i]);

		printf("%02x ", byte_of(p, sizes[i]));
		fill_slowly(p, sizes[i]);
		victim_free(p);
		printf("%02x ", byte_of(p, sizes[i]));
		/* and again, where it was used before */
		p = victim_alloc(sizes[i]);
		printf("%02x ", byte_of(p, sizes[i]));
		victim_free(p);
	}
	return cuCtxSynchronize();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		CUresult (*run)(void);
	} mistakes[] = {
		{"ok", ok},
		{"overrun", overrun},
		{"overrun_read", overrun_read},
		{"after_free", after_free},
		{"overrun_few", overrun_few},
		{"stale", stale},
	};
	CUresult result;

	victim_start(0);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		if (argc < 2 || strcmp(argv[1], mistakes[i].name) != 0)
			continue;
		result = mistakes[i].run();
		printf("%s\n", victim_name(result));
		fflush(stdout);
		return 0;
	}
	printf("which mistake?\n");
	return 2;
}
