/* SPDX-License-Identifier: MIT
 *
 * peers: memory of one GPU used on another: by kernels once peer access is
 * enabled, memory that was there and memory that comes later; and by copies of
 * every kind, without and with peer access.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "try.h"

static const size_t SIZES[] = {512, 100000, 1 << 20, 3 << 20, 40 << 20};
static const size_t PITCH = 4096, WIDTH = 1000, ROWS = 640;
static const size_t SIZE = PITCH * ROWS;

__global__ void fill(uint32_t *p, size_t n, uint32_t seed)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		p[i] = (uint32_t)i * 2654435761u + seed;
}

/* Reads it all, wherever it lies; then changes it. */
__global__ void visit(uint32_t *p, size_t n, uint32_t seed,
		      unsigned long long *n_bad)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x) {
		if (p[i] != (uint32_t)i * 2654435761u + seed)
			atomicAdd(n_bad, 1);
		p[i] += 1;
	}
}

static void say(const char *what, unsigned long long n_bad)
{
	if (n_bad)
		std::printf("%s: WRONG %llu\n", what, n_bad);
	else
		std::printf("%s: ok\n", what);
}

static uint32_t *made_on(int device, size_t size, uint32_t seed)
{
	uint32_t *p;

	TRY(cudaSetDevice(device));
	TRY(cudaMalloc(&p, size));
	fill<<<64, 256>>>(p, size / 4, seed);
	TRY(cudaDeviceSynchronize());
	return p;
}

/* A kernel of `device` reads and writes it; then one of the other checks. */
static unsigned long long seen_on(int device, uint32_t *p, size_t size,
				  uint32_t seed)
{
	unsigned long long *n_bad, sum = 0, n;

	for (int turn = 0; turn < 2; turn++) {
		TRY(cudaSetDevice(turn ? 1 - device : device));
		TRY(cudaMalloc(&n_bad, sizeof(*n_bad)));
		TRY(cudaMemset(n_bad, 0, sizeof(*n_bad)));
		visit<<<64, 256>>>(p, size / 4, seed + turn, n_bad);
		TRY(cudaMemcpy(&n, n_bad, sizeof(n), cudaMemcpyDefault));
		TRY(cudaFree(n_bad));
		sum += n;
	}
	return sum;
}

static void kernels(const char *when, const std::vector<uint32_t *> &old)
{
	unsigned long long n_bad = 0;
	char what[64];

	for (size_t i = 0; i < old.size(); i++)
		n_bad += seen_on(1, old[i], SIZES[i], 100 + (uint32_t)i);
	std::snprintf(what, sizeof(what), "%s, memory that was there", when);
	say(what, n_bad);
	n_bad = 0;
	for (unsigned turn = 0; turn < 40; turn++) {
		size_t size = SIZES[turn % 5] + turn * 4096;
		uint32_t *p = made_on(0, size, turn), *q = made_on(1, size, 7);

		n_bad += seen_on(1, p, size, turn);
		n_bad += seen_on(0, q, size, 7);
		TRY(cudaFree(p));
		TRY(cudaFree(q));
	}
	std::snprintf(what, sizeof(what), "%s, memory that came later", when);
	say(what, n_bad);
}

/* --- copies --------------------------------------------------------------- */

static uint32_t *ends[2]; /* of device 0 and 1 */
static cudaStream_t streams[2];

static cudaMemcpy3DParms layers(int to)
{
	cudaMemcpy3DParms c = {};

	c.srcPtr = make_cudaPitchedPtr(ends[1 - to], PITCH, PITCH, ROWS / 4);
	c.dstPtr = make_cudaPitchedPtr(ends[to], PITCH, PITCH, ROWS / 4);
	c.dstPos = make_cudaPos(16, 0, 0);
	c.extent = make_cudaExtent(WIDTH, ROWS / 4 - 1, 3);
	c.kind = cudaMemcpyDefault;
	return c;
}

static cudaError_t batch(int to, cudaStream_t stream)
{
#if CUDART_VERSION >= 13000
	const size_t part = SIZE / 4;
	void *dsts[4];
	const void *srcs[4];
	size_t sizes[4], first = 0;
	cudaMemcpyAttributes how = {};

	for (size_t i = 0; i < 4; i++) {
		dsts[i] = (char *)ends[to] + i * part;
		srcs[i] = (char *)ends[1 - to] + (3 - i) * part;
		sizes[i] = part;
	}
	how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
	return cudaMemcpyBatchAsync(dsts, srcs, sizes, 4, &how, &first, 1,
				    stream);
#else
	(void)to;
	(void)stream;
	return cudaErrorNotSupported;
#endif
}

static cudaError_t by_graph(int to, cudaStream_t stream)
{
	cudaMemcpy3DParms c = layers(to);
	cudaGraph_t graph;
	cudaGraphNode_t node, next;
	cudaGraphExec_t exec;
	cudaError_t result;

	TRY(cudaGraphCreate(&graph, 0));
	result = cudaGraphAddMemcpyNode(&node, graph, NULL, 0, &c);
	if (result == cudaSuccess)
		result = cudaGraphAddMemcpyNode1D(&next, graph, &node, 1,
						  ends[to], ends[1 - to], 4096,
						  cudaMemcpyDefault);
	if (result == cudaSuccess)
		result = cudaGraphInstantiate(&exec, graph, 0);
	if (result == cudaSuccess) {
		result = cudaGraphLaunch(exec, stream);
		TRY(cudaStreamSynchronize(stream));
		TRY(cudaGraphExecDestroy(exec));
	}
	TRY(cudaGraphDestroy(graph));
	return result;
}

static cudaError_t by_capture(int to, cudaStream_t stream)
{
	cudaGraph_t graph = NULL;
	cudaGraphExec_t exec;
	cudaError_t result, ended;

	TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	result = cudaMemcpyAsync(ends[to], ends[1 - to], SIZE,
				 cudaMemcpyDefault, stream);
	ended = cudaStreamEndCapture(stream, &graph);
	if (result == cudaSuccess)
		result = ended;
	if (result == cudaSuccess)
		result = cudaGraphInstantiate(&exec, graph, 0);
	if (result == cudaSuccess) {
		result = cudaGraphLaunch(exec, stream);
		TRY(cudaStreamSynchronize(stream));
		TRY(cudaGraphExecDestroy(exec));
	}
	if (graph)
		TRY(cudaGraphDestroy(graph));
	return result;
}

static const struct {
	const char *name;
	cudaError_t (*run)(int to, cudaStream_t stream);
} copies[] = {
	{"cudaMemcpy",
	 [](int to, cudaStream_t) {
		 return cudaMemcpy(ends[to], ends[1 - to], SIZE,
				   cudaMemcpyDefault);
	 }},
	{"cudaMemcpy device to device",
	 [](int to, cudaStream_t) {
		 return cudaMemcpy(ends[to], ends[1 - to], SIZE,
				   cudaMemcpyDeviceToDevice);
	 }},
	{"cudaMemcpyAsync",
	 [](int to, cudaStream_t stream) {
		 return cudaMemcpyAsync(ends[to], ends[1 - to], SIZE,
					cudaMemcpyDefault, stream);
	 }},
	{"cudaMemcpyPeer",
	 [](int to, cudaStream_t) {
		 return cudaMemcpyPeer(ends[to], to, ends[1 - to], 1 - to,
				       SIZE);
	 }},
	{"cudaMemcpyPeerAsync",
	 [](int to, cudaStream_t stream) {
		 return cudaMemcpyPeerAsync(ends[to], to, ends[1 - to], 1 - to,
					    SIZE, stream);
	 }},
	{"cudaMemcpy2D",
	 [](int to, cudaStream_t) {
		 return cudaMemcpy2D(ends[to], PITCH, ends[1 - to], PITCH,
				     WIDTH, ROWS, cudaMemcpyDefault);
	 }},
	{"cudaMemcpy2DAsync",
	 [](int to, cudaStream_t stream) {
		 return cudaMemcpy2DAsync(ends[to], PITCH, ends[1 - to], PITCH,
					  WIDTH, ROWS, cudaMemcpyDefault,
					  stream);
	 }},
	{"cudaMemcpy3D",
	 [](int to, cudaStream_t) {
		 cudaMemcpy3DParms c = layers(to);

		 return cudaMemcpy3D(&c);
	 }},
	{"cudaMemcpy3DAsync",
	 [](int to, cudaStream_t stream) {
		 cudaMemcpy3DParms c = layers(to);

		 return cudaMemcpy3DAsync(&c, stream);
	 }},
	{"cudaMemcpyBatchAsync", batch},
	{"graph nodes", by_graph},
	{"captured", by_capture},
};

/* What the destination holds afterwards, as one number. */
static uint64_t hash_of(int device)
{
	std::vector<uint32_t> data(SIZE / 4);
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	TRY(cudaSetDevice(device));
	TRY(cudaMemcpy(data.data(), ends[device], SIZE, cudaMemcpyDefault));
	for (uint32_t word : data)
		hash = (hash ^ word) * UINT64_C(0x100000001b3);
	return hash;
}

static void copy_all(const char *when)
{
	for (unsigned i = 0; i < sizeof(copies) / sizeof(*copies) * 4; i++) {
		int to = i & 1, here = i >> 1 & 1;
		cudaError_t result;

		for (int d = 0; d < 2; d++) {
			TRY(cudaSetDevice(d));
			fill<<<64, 256>>>(ends[d], SIZE / 4, i * 2 + d);
			TRY(cudaDeviceSynchronize());
		}
		TRY(cudaSetDevice(here));
		result = copies[i / 4].run(to, streams[here]);
		for (int d = 0; d < 2; d++) {
			TRY(cudaSetDevice(d));
			TRY(cudaDeviceSynchronize());
		}
		std::printf("%s, %s, to %d on %d: %s %016llx\n", when,
			    copies[i / 4].name, to, here,
			    result ? cudaGetErrorName(result) : "ok",
			    (unsigned long long)hash_of(to));
		cudaGetLastError();
	}
}

static void new_ends()
{
	for (int d = 0; d < 2; d++) {
		if (ends[d])
			TRY(cudaFree(ends[d]));
		ends[d] = made_on(d, SIZE, 0);
	}
}

int main()
{
	std::vector<uint32_t *> old;
	int n, can = 0;

	TRY(cudaGetDeviceCount(&n));
	if (n < 2) {
		std::printf("GPUs: skipped, fewer than two\n");
		return 0;
	}
	TRY(cudaDeviceCanAccessPeer(&can, 1, 0));
	std::printf("can be peers: %d\n", can);
	for (int d = 0; d < 2; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaStreamCreateWithFlags(&streams[d],
					      cudaStreamNonBlocking));
	}
	for (unsigned i = 0; i < 5; i++)
		old.push_back(made_on(0, SIZES[i], 100 + i));
	new_ends();
	copy_all("no peers");
	if (!can)
		return 0;
	for (int d = 0; d < 2; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceEnablePeerAccess(1 - d, 0));
	}
	kernels("peers", old);
	copy_all("peers");
	new_ends();
	copy_all("peers, new memory");
	for (int d = 0; d < 2; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceDisablePeerAccess(1 - d));
	}
	new_ends();
	copy_all("no peers again");
	for (int d = 0; d < 2; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceEnablePeerAccess(1 - d, 0));
	}
	for (unsigned i = 0; i < 5; i++) {
		TRY(cudaSetDevice(0));
		fill<<<64, 256>>>(old[i], SIZES[i] / 4, 100 + i);
		TRY(cudaDeviceSynchronize());
	}
	kernels("peers again", old);
	return 0;
}
