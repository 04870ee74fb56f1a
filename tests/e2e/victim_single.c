/* SPDX-License-Identifier: MIT
 *
 * victim_single [set | stream | graph | context | green | registered | waits |
 * records]: gives all work in one stream for long, with hardly any memory to
 * spare and behind slow kernels. Then what does not keep the order of that
 * stream comes to the memory at once: a set in the NULL stream, another stream,
 * a graph, another context, a green one, or memory that is registered. And the
 * one stream again. `waits`, `records`: another stream waits for an event now
 * and then, or records one. Of all it allocates it fills a part and checks it,
 * on the device.
 */
#include "victim_link.h"

enum { BLOCKS = 6, ROUNDS = 800, SLOW_NS = 2000000 };

struct kernels {
	CUfunction fill, check, sleep;
};

static struct kernels own; /* the first context's */
static CUstream one, two;
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

static void in_another_stream(void)
{
	churn(&own, two, 20);
	report("another stream");
}

static void in_a_graph(void)
{
	size_t size = 20 * MiB;
	CUdeviceptr p = victim_alloc(size);
	CUgraphExec exec;
	CUgraph graph;

	TRY(cuStreamBeginCapture(two, CU_STREAM_CAPTURE_MODE_RELAXED));
	use_once(&own, two, p, size);
	TRY(cuStreamEndCapture(two, &graph));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	TRY(cuGraphLaunch(exec, two));
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

static void in_another_context(void)
{
	struct kernels k;
	CUcontext first, other;
	CUdevice device;
	CUstream stream;

	TRY(cuCtxGetCurrent(&first));
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
static void in_a_green_context(void)
{
	CUgreenCtx green;
	CUdevice device;
	CUstream stream;

	TRY(cuCtxGetDevice(&device));
	TRY(cuGreenCtxCreate(&green, victim_units(device), device,
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	churn(&own, stream, 20);
	report("a green context");
	TRY(cuStreamDestroy(stream));
	TRY(cuGreenCtxDestroy(green));
}

static void is_registered(void)
{
	size_t size = 20 * MiB;
	CUdeviceptr p = victim_alloc(size);
	unsigned int on = 1;

	TRY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	TRY(cuMemsetD8(p, 0x55, size));
	printf("registered: %d\n", victim_is_filled(p, size, 0x55));
	victim_free(p);
}

/* It is no kernel, but held up by what holds up all streams. */
static void now_and_then(bool is_wait)
{
	CUevent event;

	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	TRY(cuEventRecord(event, one));
	for (int i = 0; i < ROUNDS / 40; i++) {
		churn(&own, one, 40);
		if (is_wait)
			TRY(cuStreamWaitEvent(two, event, 0));
		else
			TRY(cuEventRecord(event, two));
	}
	report(is_wait ? "another waits" : "another records");
	TRY(cuEventDestroy(event));
}

static const struct other {
	const char *name;
	void (*come)(void);
} others[] = {{"set", in_the_null_stream},   {"stream", in_another_stream},
	      {"graph", in_a_graph},	     {"context", in_another_context},
	      {"green", in_a_green_context}, {"registered", is_registered}};

static void between_one(const struct other *o)
{
	churn(&own, one, ROUNDS);
	o->come();
	churn(&own, one, ROUNDS);
	report("one stream");
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "waits";
	int n = (int)(sizeof(others) / sizeof(others[0])), i;

	victim_start(0);
	own.fill = victim_kernel("vs_fill");
	own.check = victim_kernel("vs_check");
	own.sleep = victim_kernel("vs_sleep");
	TRY(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
	wrong = victim_alloc(sizeof(uint64_t));
	TRY(cuMemsetD8Async(wrong, 0, sizeof(uint64_t), one));
	TRY(cuCtxSynchronize());
	if (!strcmp(name, "waits") || !strcmp(name, "records")) {
		now_and_then(name[0] == 'w');
		return 0;
	}
	for (i = 0; i < n && strcmp(name, others[i].name); i++)
		;
	CHECK(i < n);
	between_one(&others[i]);
	return 0;
}
