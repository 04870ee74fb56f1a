/* SPDX-License-Identifier: MIT
 *
 * victim_single [registered | green]: gives all work in one stream for long,
 * with hardly any memory to spare and behind slow kernels. Then what does not
 * keep the order of that stream comes to the memory at once: the NULL stream,
 * another stream, a graph, another context or, instead, memory that is to be
 * registered. Of all it allocates it fills a part and checks it, on the device.
 */
#include "victim_link.h"

enum { BLOCKS = 6, ROUNDS = 800, SLOW_NS = 2000000 };

struct kernels {
	CUfunction fill, check, sleep;
};

static CUdeviceptr wrong; /* a count; each context checks in its own stream */
static uint64_t seed = 20261125;
static uint32_t value;

static size_t some_size(void)
{
	return (8 + victim_random(&seed) % 17) * MiB;
}

/* A part of the block, anywhere in it, behind what else there is to do. */
static void use_once(const struct kernels *k, CUstream stream, CUdeviceptr p,
		     size_t size)
{
	uint64_t n = 64 * KiB / sizeof(value);
	void *fill[] = {&p, &value, &n}, *check[] = {&p, &value, &n, &wrong};

	p += victim_random(&seed) % (size / (64 * KiB)) * 64 * KiB;
	value++;
	victim_launch(k->fill, stream, fill);
	victim_launch(k->check, stream, check);
}

static void stay_behind(const struct kernels *k, CUstream stream)
{
	uint64_t ns = SLOW_NS, n = 0;
	void *arguments[] = {&ns, &wrong, &value, &n};

	victim_launch(k->sleep, stream, arguments);
}

/* Blocks come and go, a few live at a time. */
static void churn(const struct kernels *k, CUstream stream, int rounds)
{
	CUdeviceptr p[BLOCKS] = {0};

	for (int i = 0; i < rounds; i++) {
		size_t size = some_size();

		if (i % 4 == 0)
			stay_behind(k, stream);
		if (p[i % BLOCKS])
			victim_free(p[i % BLOCKS]);
		p[i % BLOCKS] = victim_alloc(size);
		use_once(k, stream, p[i % BLOCKS], size);
	}
	for (int i = 0; i < BLOCKS; i++) {
		if (p[i])
			victim_free(p[i]);
	}
}

static void report(const char *what)
{
	uint64_t n;

	TRY(cuCtxSynchronize());
	TRY(cuMemcpyDtoH(&n, wrong, sizeof(n)));
	printf("%s: %llu words differ\n", what, (unsigned long long)n);
}

static void in_a_graph(const struct kernels *k, CUstream stream)
{
	size_t size = 20 * MiB;
	CUdeviceptr p = victim_alloc(size);
	CUgraphExec exec;
	CUgraph graph;

	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	use_once(k, stream, p, size);
	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	TRY(cuGraphLaunch(exec, stream));
	report("a graph");
	TRY(cuGraphExecDestroy(exec));
	TRY(cuGraphDestroy(graph));
	victim_free(p);
}

static void in_the_null_stream(void)
{
	size_t size = 20 * MiB;
	CUdeviceptr p = victim_alloc(size);

	TRY(cuMemsetD8(p, 0x77, size));
	printf("a set: %d\n", victim_is_filled(p, size, 0x77));
	victim_free(p);
}

static void in_another_context(CUcontext first)
{
	struct kernels k;
	CUcontext other;
	CUdevice device;
	CUstream stream;

	TRY(cuCtxGetDevice(&device));
	TRY(cuCtxCreate_v2(&other, 0, device));
	k.fill = victim_kernel("vs_fill");
	k.check = victim_kernel("vs_check");
	k.sleep = victim_kernel("vs_sleep");
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	churn(&k, stream, 20);
	report("another context");
	TRY(cuCtxDestroy(other));
	TRY(cuCtxSetCurrent(first));
}

/* Its streams are no stream of a context that there was. */
static void in_a_green_context(const struct kernels *k)
{
	CUgreenCtx green;
	CUdevice device;
	CUstream stream;

	TRY(cuCtxGetDevice(&device));
	TRY(cuGreenCtxCreate(&green, victim_units(device), device,
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	churn(k, stream, 20);
	report("a green context");
	TRY(cuStreamDestroy(stream));
	TRY(cuGreenCtxDestroy(green));
}

static void registered(void)
{
	size_t size = 20 * MiB;
	CUdeviceptr p = victim_alloc(size);
	unsigned int on = 1;

	TRY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	TRY(cuMemsetD8(p, 0x55, size));
	printf("registered: %d\n", victim_is_filled(p, size, 0x55));
	victim_free(p);
}

int main(int argc, char **argv)
{
	CUcontext ctx = victim_start(0);
	struct kernels k = {victim_kernel("vs_fill"), victim_kernel("vs_check"),
			    victim_kernel("vs_sleep")};
	CUstream one, two;

	TRY(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
	wrong = victim_alloc(sizeof(uint64_t));
	TRY(cuMemsetD8(wrong, 0, sizeof(uint64_t)));
	TRY(cuCtxSynchronize());
	churn(&k, one, ROUNDS);
	in_the_null_stream();
	churn(&k, one, ROUNDS);
	churn(&k, two, 20);
	report("another stream");
	churn(&k, one, ROUNDS);
	in_a_graph(&k, one);
	churn(&k, one, ROUNDS);
	if (argc > 1 && !strcmp(argv[1], "registered"))
		registered();
	else if (argc > 1)
		in_a_green_context(&k);
	else
		in_another_context(ctx);
	churn(&k, one, ROUNDS);
	report("one stream");
	return 0;
}
