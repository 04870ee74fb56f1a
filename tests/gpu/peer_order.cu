/* SPDX-License-Identifier: MIT
 *
 * peer_order: in which order a GPU's kernel and a copy or set that is submitted
 * on another GPU touch the same memory. In the NULL stream they follow each
 * other as they were submitted (CUDA C++ Programming Guide, peer-to-peer memory
 * copy). Says whose value was seen last: the same with any allocator.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "try.h"

static const int HERE = 0, THERE = 1; /* submits the copy; runs the kernel */
static const size_t PITCH = 4096, ROWS = 512, SIZE = PITCH * ROWS;
static const size_t LAST = SIZE / 4 - 1;
static const long long PAUSE_NS = 15000000;

/* After a while; p may be NULL. */
__global__ void write_late(uint32_t *p, uint32_t value, long long ns)
{
	unsigned long long begin, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - begin < (unsigned long long)ns);
	if (p)
		p[LAST] = value;
}

enum { ON_HERE, ON_THERE, SPARE_THERE, PAGEABLE, PINNED, N_PLACES };
enum { NOBODY, HERE_S, THERE_S, SPARE_S, HOST_S, KERNEL_S, N_WRITERS };
static uint32_t *places[N_PLACES];
static const char *const writers[N_WRITERS] = {"nobody's",   "here's",
					       "there's",    "the spare's",
					       "the host's", "the kernel's"};
static const uint32_t firsts[N_PLACES] = {HERE_S, THERE_S, SPARE_S, HOST_S,
					  HOST_S};

/* The kernel writes ON_THERE; what was written last, or read, is in `seen`. */
static const struct {
	const char *name;
	int to, from, seen;
} ways[] = {
	{"from there", ON_HERE, ON_THERE, ON_HERE},
	{"to there", ON_THERE, ON_HERE, ON_THERE},
	{"within there, from", SPARE_THERE, ON_THERE, SPARE_THERE},
	{"within there, to", ON_THERE, SPARE_THERE, ON_THERE},
	{"to host", PAGEABLE, ON_THERE, PAGEABLE},
	{"to pinned host", PINNED, ON_THERE, PINNED},
	{"from host", ON_THERE, PAGEABLE, ON_THERE},
	{"from pinned host", ON_THERE, PINNED, ON_THERE},
};

static cudaMemcpy3DParms volume(void *to, void *from)
{
	cudaMemcpy3DParms c = {};

	c.srcPtr = make_cudaPitchedPtr(from, PITCH, PITCH, ROWS);
	c.dstPtr = make_cudaPitchedPtr(to, PITCH, PITCH, ROWS);
	c.extent = make_cudaExtent(PITCH, ROWS, 1);
	c.kind = cudaMemcpyDefault;
	return c;
}

static int device_of(const void *p)
{
	cudaPointerAttributes a;

	TRY(cudaPointerGetAttributes(&a, p));
	return a.type == cudaMemoryTypeDevice ? a.device : -1;
}

static const struct {
	const char *name;
	bool has_stream, is_peer;
	cudaError_t (*run)(void *to, void *from, cudaStream_t stream);
} calls[] = {
	{"cudaMemcpy", false, false,
	 [](void *to, void *from, cudaStream_t) {
		 return cudaMemcpy(to, from, SIZE, cudaMemcpyDefault);
	 }},
	{"cudaMemcpy2D", false, false,
	 [](void *to, void *from, cudaStream_t) {
		 return cudaMemcpy2D(to, PITCH, from, PITCH, PITCH, ROWS,
				     cudaMemcpyDefault);
	 }},
	{"cudaMemcpy3D", false, false,
	 [](void *to, void *from, cudaStream_t) {
		 cudaMemcpy3DParms c = volume(to, from);

		 return cudaMemcpy3D(&c);
	 }},
	{"cudaMemcpyPeer", false, true,
	 [](void *to, void *from, cudaStream_t) {
		 return cudaMemcpyPeer(to, device_of(to), from, device_of(from),
				       SIZE);
	 }},
	{"cudaMemcpyAsync", true, false,
	 [](void *to, void *from, cudaStream_t stream) {
		 return cudaMemcpyAsync(to, from, SIZE, cudaMemcpyDefault,
					stream);
	 }},
	{"cudaMemcpy2DAsync", true, false,
	 [](void *to, void *from, cudaStream_t stream) {
		 return cudaMemcpy2DAsync(to, PITCH, from, PITCH, PITCH, ROWS,
					  cudaMemcpyDefault, stream);
	 }},
	{"cudaMemcpy3DAsync", true, false,
	 [](void *to, void *from, cudaStream_t stream) {
		 cudaMemcpy3DParms c = volume(to, from);

		 return cudaMemcpy3DAsync(&c, stream);
	 }},
	{"cudaMemcpyPeerAsync", true, true,
	 [](void *to, void *from, cudaStream_t stream) {
		 return cudaMemcpyPeerAsync(to, device_of(to), from,
					    device_of(from), SIZE, stream);
	 }},
	{"cudaMemset", false, false,
	 [](void *to, void *, cudaStream_t) {
		 return cudaMemset2D(to, PITCH, 0, PITCH, ROWS);
	 }},
	{"cudaMemsetAsync", true, false,
	 [](void *to, void *, cudaStream_t stream) {
		 return cudaMemsetAsync(to, 0, SIZE, stream);
	 }},
};

static struct {
	const char *name;
	cudaStream_t stream;
} streams[] = {{"NULL", NULL}, {"blocking", NULL}, {"non-blocking", NULL}};

static void settle()
{
	for (int d : {THERE, HERE}) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceSynchronize());
	}
}

static void prepare()
{
	for (int i = 0; i < N_PLACES; i++) {
		TRY(cudaMemcpy(places[i] + LAST, &firsts[i], sizeof(uint32_t),
			       cudaMemcpyDefault));
	}
	settle();
}

static const char *writer_of(int place)
{
	uint32_t value = 0;

	TRY(cudaMemcpy(&value, places[place] + LAST, sizeof(value),
		       cudaMemcpyDefault));
	return value < N_WRITERS ? writers[value] : "noise";
}

/* The kernel there, late, and then the call; or the call, late, and then it. */
static void try_one(const char *when, unsigned call, unsigned way, unsigned s,
		    bool is_after)
{
	cudaStream_t stream = streams[s].stream;
	cudaError_t result;

	prepare();
	TRY(cudaSetDevice(is_after ? THERE : HERE));
	write_late<<<1, 1, 0, is_after ? NULL : stream>>>(
		is_after ? places[ON_THERE] : NULL, KERNEL_S, PAUSE_NS);
	TRY(cudaSetDevice(HERE));
	result = calls[call].run(places[ways[way].to], places[ways[way].from],
				 stream);
	if (!is_after) {
		TRY(cudaSetDevice(THERE));
		write_late<<<1, 1>>>(places[ON_THERE], KERNEL_S, 0);
	}
	settle();
	std::printf("%s, %s %s, stream %s, %s the kernel: %s, %s\n", when,
		    calls[call].name, ways[way].name, streams[s].name,
		    is_after ? "after" : "before",
		    result ? cudaGetErrorName(result) : "ok",
		    writer_of(ways[way].seen));
	cudaGetLastError();
}

static bool has_meaning(unsigned call, unsigned way)
{
	return !calls[call].is_peer ||
	       (ways[way].to <= SPARE_THERE && ways[way].from <= SPARE_THERE);
}

/* From pageable memory a call returns while a part is yet on its way. */
static bool is_sure(unsigned way, unsigned s)
{
	return ways[way].from != PAGEABLE || streams[s].stream == NULL;
}

static void try_all(const char *when)
{
	TRY(cudaSetDevice(HERE));
	TRY(cudaMalloc(&places[ON_HERE], SIZE));
	TRY(cudaSetDevice(THERE));
	TRY(cudaMalloc(&places[ON_THERE], SIZE));
	TRY(cudaMalloc(&places[SPARE_THERE], SIZE));
	for (unsigned c = 0; c < sizeof(calls) / sizeof(*calls); c++) {
		for (unsigned w = 0; w < sizeof(ways) / sizeof(*ways); w++) {
			if (!has_meaning(c, w))
				continue;
			for (unsigned s = 0; s < (calls[c].has_stream ? 3 : 1);
			     s++) {
				try_one(when, c, w, s, true);
				if (is_sure(w, s))
					try_one(when, c, w, s, false);
			}
		}
	}
	for (int i = 0; i <= SPARE_THERE; i++)
		TRY(cudaFree(places[i]));
}

int main()
{
	int n;

	TRY(cudaGetDeviceCount(&n));
	if (n < 2) {
		std::printf("GPUs: skipped, fewer than two\n");
		return 0;
	}
	TRY(cudaSetDevice(HERE));
	places[PAGEABLE] = (uint32_t *)std::malloc(SIZE);
	TRY(cudaMallocHost(&places[PINNED], SIZE));
	TRY(cudaStreamCreate(&streams[1].stream));
	TRY(cudaStreamCreateWithFlags(&streams[2].stream,
				      cudaStreamNonBlocking));
	try_all("no peers");
	for (int d = 0; d < 2; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceEnablePeerAccess(1 - d, 0));
	}
	try_all("peers");
	return 0;
}
