/* SPDX-License-Identifier: MIT
 *
 * random_work [--seconds N] [--seed S] [--threads N] [--streams N] [--live MIB]
 *      [--share PERCENT] [--bits N] [--lag US] [--pause S] [--devices N]
 *      [--patient] [--trim]
 *
 * A correct program at random: threads allocate, fill, change, copy, check and
 * free blocks, in several streams and graphs, and free while work with them is
 * still to come, their own and others'. Each word of a block is known by its
 * index and the block's seed; kernels look twice, a while apart, so memory that
 * is handed out too early shows as a wrong word. --live is what a thread keeps
 * at most, or all of them --share of the device; blocks are smaller than
 * 2^(bits + 1), --lag is how long a kernel waits at most. It begins after
 * --pause, when it has all that cannot be without, as other processes have.
 * With no streams everything is in the NULL stream. --devices: blocks are of
 * any of them, and so is who works with them; before the free of one its own
 * device waits for the work of others, which suffices for the shim's free, and
 * with --patient the host, which the driver's needs. --trim sends SIGUSR2 all
 * the time. Out of memory is no error: the thread gives half of its own back.
 * The same seed makes each thread begin the same way.
 */
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "try.h"

__device__ void pause_ns(long long ns)
{
	unsigned long long begin, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - begin < (unsigned long long)ns);
}

__host__ __device__ inline uint32_t word(size_t i, uint32_t seed)
{
	return (uint32_t)i * 2654435761u + seed;
}

#define EACH(i, n)                                                             \
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;         \
	     i < (n); i += (size_t)gridDim.x * blockDim.x)

__global__ void fill(uint32_t *p, size_t n, uint32_t seed, long long ns)
{
	pause_ns(ns);
	EACH(i, n)
	p[i] = word(i, seed);
}

__global__ void change(uint32_t *p, size_t n, uint32_t by, long long ns)
{
	pause_ns(ns);
	EACH(i, n)
	p[i] += by;
}

__global__ void check(const volatile uint32_t *p, size_t n, uint32_t seed,
		      long long ns, unsigned long long *wrong)
{
	for (int look = 0; look < 2; look++) {
		EACH(i, n)
		if (p[i] != word(i, seed))
			atomicAdd(wrong, 1ull);
		if (look == 0)
			pause_ns(ns);
	}
}

struct options {
	long seconds = 5, seed = 1, threads = 4, streams = 3, live = 2048,
	     share = 0, bits = 26, lag = 300, pause = 0, devices = 1, trim = 0,
	     patient = 0;
};

static options opt;
static std::vector<unsigned long long *> wrong; /* one on each device */
static std::atomic<bool> is_done;
static std::atomic<unsigned long> n_ops, n_allocs, n_short, n_seen_wrong;

struct block {
	uint32_t *p;
	size_t n;     /* words that are known */
	size_t bytes; /* asked for */
	uint32_t seed;
	int stream;	  /* of the last write */
	unsigned readers; /* streams that read it since */
	int device;
	unsigned far; /* streams of other devices that had it */
};

/* Streams are numbered over all devices, a device's NULL stream first. */
static int streams_each()
{
	return (int)opt.streams + 1;
}

static int device_of(int stream)
{
	return stream / streams_each();
}

static void use_device(int device)
{
	if (opt.devices > 1)
		TRY(cudaSetDevice(device));
}

/* To wait for a whole device ends every capture there. */
static std::shared_mutex captures;
/* Blocks that another thread is to free; their work may be under way. */
static std::mutex shelf_lock;
static std::vector<uint32_t *> shelf;

class worker
{
      public:
	explicit worker(int index) : chance(opt.seed * 1000 + index)
	{
		for (int i = 0; i < opt.devices * streams_each(); i++) {
			cudaStream_t stream = nullptr;
			cudaEvent_t event;
			int of_device = i % streams_each();

			use_device(device_of(i));
			if (of_device > 0)
				TRY(cudaStreamCreateWithFlags(
					&stream, of_device % 2
							 ? cudaStreamNonBlocking
							 : cudaStreamDefault));
			TRY(cudaEventCreateWithFlags(&event,
						     cudaEventDisableTiming));
			streams.push_back(stream);
			events.push_back(event);
		}
	}

	void run()
	{
		while (!is_done) {
			act();
			TRY(cudaGetLastError()); /* of its launches */
			n_ops++;
		}
		for (block &b : blocks)
			read(b, any_stream());
		while (!blocks.empty())
			drop(0);
		for (int i = 0; i < (int)streams.size(); i++)
			TRY(cudaStreamSynchronize(in(i)));
	}

      private:
	std::mt19937 chance;
	std::vector<cudaStream_t> streams;
	std::vector<cudaEvent_t> events;
	std::vector<block> blocks;
	size_t live = 0;

	unsigned up_to(unsigned n)
	{
		return chance() % n;
	}

	int any_stream()
	{
		return streams.size() > 1 ? (int)up_to(streams.size()) : 0;
	}

	int any_device()
	{
		return opt.devices > 1 ? (int)up_to(opt.devices) : 0;
	}

	/* The stream, whose device is the current one from here on. */
	cudaStream_t in(int stream)
	{
		use_device(device_of(stream));
		return streams[stream];
	}

	/* Mostly short, now and then as long as it gets. */
	long long pause()
	{
		return up_to(8) ? up_to(20000) : up_to(opt.lag + 1) * 1000ll;
	}

	static int grid(size_t n)
	{
		return (int)std::min<size_t>(64, n / 256 + 1);
	}

	void wait_in(int stream, int for_stream)
	{
		if (stream == for_stream)
			return;
		TRY(cudaEventRecord(events[for_stream], in(for_stream)));
		TRY(cudaStreamWaitEvent(in(stream), events[for_stream], 0));
	}

	void wait_for_all(int stream, unsigned these)
	{
		for (int i = 0; i < (int)streams.size(); i++)
			if (these >> i & 1)
				wait_in(stream, i);
	}

	/* Work there has the block. */
	void lend(block &b, int stream)
	{
		if (device_of(stream) != b.device)
			b.far |= 1u << stream;
	}

	/* Work of its own device waits for that of all others. */
	void come_home(block &b)
	{
		int home = b.device * streams_each();

		if (!b.far)
			return;
		wait_for_all(home, b.far);
		read(b, home);
		if (opt.patient)
			TRY(cudaStreamSynchronize(in(home)));
	}

	/* `stream` may write `b` from here on. */
	void own(block &b, int stream)
	{
		wait_in(stream, b.stream);
		wait_for_all(stream, b.readers);
		b.readers = 0;
		b.stream = stream;
	}

	void read(block &b, int stream)
	{
		wait_in(stream, b.stream);
		launch_check(b, stream);
		b.readers |= 1u << stream;
	}

	void launch_check(block &b, int stream)
	{
		lend(b, stream);
		check<<<grid(b.n), 256, 0, in(stream)>>>(
			b.p, b.n, b.seed, pause(), wrong[device_of(stream)]);
	}

	void launch_change(block &b, int stream, uint32_t by)
	{
		lend(b, stream);
		change<<<grid(b.n), 256, 0, in(stream)>>>(b.p, b.n, by,
							  pause());
	}

	void write(block &b, int stream)
	{
		own(b, stream);
		b.seed = chance();
		b.n = b.bytes / 4;
		lend(b, stream);
		fill<<<grid(b.n), 256, 0, in(stream)>>>(b.p, b.n, b.seed,
							pause());
	}

	void alter(block &b, int stream)
	{
		uint32_t by = chance();

		own(b, stream);
		b.seed += by;
		launch_change(b, stream, by);
	}

	void copy(block &to, block &from, int stream)
	{
		if (&to == &from)
			return;
		own(to, stream);
		wait_in(stream, from.stream);
		lend(to, stream);
		lend(from, stream);
		to.n = std::min(to.bytes / 4, from.n);
		to.seed = from.seed;
		if (to.device != from.device && up_to(2))
			TRY(cudaMemcpyPeerAsync(to.p, to.device, from.p,
						from.device, to.n * 4,
						in(stream)));
		else
			TRY(cudaMemcpyAsync(to.p, from.p, to.n * 4,
					    cudaMemcpyDeviceToDevice,
					    in(stream)));
		from.readers |= 1u << stream;
	}

	void look_from_host(block &b, int stream)
	{
		uint32_t seen[256];
		size_t n = std::min<size_t>(b.n, 256), at = up_to(b.n - n + 1);

		wait_in(stream, b.stream);
		TRY(cudaMemcpyAsync(seen, b.p + at, n * 4,
				    cudaMemcpyDeviceToHost, in(stream)));
		TRY(cudaStreamSynchronize(in(stream)));
		for (size_t i = 0; i < n; i++)
			if (seen[i] != word(at + i, b.seed))
				n_seen_wrong++;
	}

	cudaGraph_t capture(block &b, int stream, uint32_t by)
	{
		std::shared_lock<std::shared_mutex> guard(captures);
		cudaGraph_t graph;

		TRY(cudaStreamBeginCapture(in(stream),
					   cudaStreamCaptureModeThreadLocal));
		launch_check(b, stream);
		launch_change(b, stream, by);
		TRY(cudaStreamEndCapture(in(stream), &graph));
		return graph;
	}

	void wait_for_device()
	{
		std::lock_guard<std::shared_mutex> guard(captures);

		TRY(cudaDeviceSynchronize());
	}

	/* In a graph that is gone when its work begins. */
	void graph(block &b)
	{
		int stream = 1;
		uint32_t by = chance();
		cudaGraph_t graph;
		cudaGraphExec_t exec;
		cudaError_t result;

		own(b, stream);
		graph = capture(b, stream, by);
		result = cudaGraphInstantiate(&exec, graph, 0);
		TRY(cudaGraphDestroy(graph));
		if (result == cudaErrorMemoryAllocation)
			return be_short();
		TRY(result);
		result = cudaGraphLaunch(exec, in(stream));
		TRY(cudaGraphExecDestroy(exec));
		if (result == cudaErrorMemoryAllocation)
			return be_short();
		TRY(result);
		b.seed += by;
	}

	void forget(size_t index)
	{
		live -= blocks[index].bytes;
		blocks[index] = blocks.back();
		blocks.pop_back();
	}

	void drop(size_t index)
	{
		come_home(blocks[index]);
		use_device(any_device());
		TRY(cudaFree(blocks[index].p));
		forget(index);
	}

	/* Another thread, or this one later, frees it. */
	void hand_over(size_t index)
	{
		come_home(blocks[index]);
		std::lock_guard<std::mutex> guard(shelf_lock);

		shelf.push_back(blocks[index].p);
		forget(index);
	}

	static void free_one_of_others()
	{
		uint32_t *p = nullptr;
		{
			std::lock_guard<std::mutex> guard(shelf_lock);

			if (!shelf.empty()) {
				p = shelf.back();
				shelf.pop_back();
			}
		}
		TRY(cudaFree(p));
	}

	/* The driver's own pool beside it. */
	void in_order()
	{
		int stream = any_stream();
		size_t n = 1 + up_to(1u << 20);
		uint32_t *p, seed = chance();
		cudaError_t result =
			cudaMallocAsync((void **)&p, n * 4, in(stream));

		if (result == cudaErrorMemoryAllocation) {
			be_short();
			return;
		}
		TRY(result);
		fill<<<grid(n), 256, 0, in(stream)>>>(p, n, seed, 0);
		check<<<grid(n), 256, 0, in(stream)>>>(
			p, n, seed, 0, wrong[device_of(stream)]);
		TRY(cudaFreeAsync(p, in(stream)));
	}

	void be_short()
	{
		cudaGetLastError();
		n_short++;
		for (size_t i = blocks.size() / 2; i > 0; i--)
			drop(up_to(blocks.size()));
		free_one_of_others();
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	}

	void take()
	{
		size_t bits = 2 + up_to((unsigned)opt.bits - 1);
		size_t bytes = (1ull << bits) + up_to(1u << bits);
		block b = {nullptr,	 0, bytes,	  0,
			   any_stream(), 0, any_device(), 0};
		cudaError_t result;

		while (!blocks.empty() && live + bytes > opt.live << 20)
			leave(up_to(blocks.size()));
		use_device(b.device);
		result = cudaMalloc((void **)&b.p, bytes);
		if (result == cudaErrorMemoryAllocation) {
			be_short();
			return;
		}
		TRY(result);
		n_allocs++;
		write(b, b.stream);
		blocks.push_back(b);
		live += bytes;
	}

	/* Work with it, and its free at once. */
	void leave(size_t index)
	{
		if (up_to(2))
			read(blocks[index], any_stream());
		if (up_to(4) == 0)
			alter(blocks[index], any_stream());
		if (up_to(3))
			read(blocks[index], any_stream());
		if (up_to(4))
			drop(index);
		else
			hand_over(index);
	}

	void act()
	{
		unsigned what = up_to(100);

		if (what < 45 || blocks.empty())
			return take();
		block &b = blocks[up_to(blocks.size())];
		if (what < 60)
			read(b, any_stream());
		else if (what < 70)
			alter(b, any_stream());
		else if (what < 76)
			copy(b, blocks[up_to(blocks.size())], any_stream());
		else if (what < 79)
			write(b, any_stream());
		else if (what < 92)
			leave(&b - blocks.data());
		else if (what < 95)
			free_one_of_others();
		else if (what < 96)
			look_from_host(b, any_stream());
		else if (what < 98 && opt.streams)
			graph(b);
		else if (what < 99 && opt.streams)
			in_order();
		else if (up_to(40) == 0)
			wait_for_device();
	}
};

/* A kernel's first launch may take memory. */
static void load_kernels(unsigned long long *p)
{
	fill<<<1, 1>>>((uint32_t *)p, 0, 0, 0);
	change<<<1, 1>>>((uint32_t *)p, 0, 0, 0);
	check<<<1, 1>>>((uint32_t *)p, 0, 0, 0, p);
	TRY(cudaDeviceSynchronize());
}

static void prepare_device(int device)
{
	unsigned long long *p;

	TRY(cudaSetDevice(device));
	for (int peer = 0; peer < opt.devices; peer++)
		if (peer != device)
			TRY(cudaDeviceEnablePeerAccess(peer, 0));
	TRY(cudaMalloc(&p, sizeof(*p)));
	TRY(cudaMemset(p, 0, sizeof(*p)));
	wrong.push_back(p);
	load_kernels(p);
}

static unsigned long long count_wrong()
{
	unsigned long long n, sum = n_seen_wrong;

	for (unsigned long long *p : wrong) {
		TRY(cudaMemcpy(&n, p, sizeof(n), cudaMemcpyDeviceToHost));
		sum += n;
	}
	return sum;
}

static void read_options(int argc, char **argv)
{
	const struct {
		const char *name;
		long *value;
	} all[] = {
		{"--seconds", &opt.seconds}, {"--seed", &opt.seed},
		{"--threads", &opt.threads}, {"--streams", &opt.streams},
		{"--live", &opt.live},	     {"--bits", &opt.bits},
		{"--lag", &opt.lag},	     {"--share", &opt.share},
		{"--pause", &opt.pause},     {"--devices", &opt.devices},
	};

	for (int i = 1; i < argc; i++) {
		bool is_trim = std::strcmp(argv[i], "--trim") == 0;
		bool is_patient = std::strcmp(argv[i], "--patient") == 0;
		bool is_known = is_trim || is_patient;

		opt.trim |= is_trim;
		opt.patient |= is_patient;
		for (auto &one : all)
			if (std::strcmp(argv[i], one.name) == 0 &&
			    i + 1 < argc) {
				*one.value = std::atol(argv[++i]);
				is_known = true;
				break;
			}
		if (!is_known) {
			std::fprintf(stderr, "random_work: what is %s?\n",
				     argv[i]);
			std::exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	auto end = std::chrono::steady_clock::now();
	std::vector<worker> workers;
	std::vector<std::thread> threads;
	unsigned long long n_wrong;
	size_t n_free, n_bytes;

	read_options(argc, argv);
	end += std::chrono::seconds(opt.pause + opt.seconds);
	for (int i = 0; i < opt.devices; i++)
		prepare_device(i);
	TRY(cudaMemGetInfo(&n_free, &n_bytes));
	if (opt.share)
		opt.live = (long)(n_bytes >> 20) * opt.devices * opt.share /
			   100 / opt.threads;
	for (int i = 0; i < opt.threads; i++)
		workers.emplace_back(i);
	std::this_thread::sleep_for(std::chrono::seconds(opt.pause));
	for (worker &w : workers)
		threads.emplace_back([&w] { w.run(); });
	while (std::chrono::steady_clock::now() < end) {
		std::this_thread::sleep_for(std::chrono::milliseconds(20));
		if (opt.trim)
			kill(getpid(), SIGUSR2);
	}
	is_done = true;
	for (std::thread &thread : threads)
		thread.join();
	for (uint32_t *p : shelf)
		TRY(cudaFree(p));
	n_wrong = count_wrong();
	std::printf("seed %ld: %lu operations, %lu allocations, %lu out of "
		    "memory, %llu wrong\n",
		    opt.seed, n_ops.load(), n_allocs.load(), n_short.load(),
		    n_wrong);
	return n_wrong != 0;
}
