/* SPDX-License-Identifier: MIT
 *
 * cover: what is asked of a way. Without the shim: whose markers wait for the
 * work, and does the driver's free? With it: is the block handed out while the
 * work runs, and does the work meet what comes next there?
 */
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "cover.h"

int n_allocs = 7;

/* Seconds until the gate opens, should giving the work block; then after it. */
static const double GIVE_S = .5, MARKERS_S = .3, FREE_S = .15, SHIM_S = .25;
/* For the work to begin, markers to complete, the end to be seen. */
static const double BEGIN_S = .15, LOOK_S = .06, END_S = 2.5;

/* --- the gate ------------------------------------------------------------- */

static std::atomic<double> open_at;

static void *open_gate(void *)
{
	while (now() < open_at)
		nap(.0005);
	*(volatile uint32_t *)&w.control[OPEN] = 1;
	return NULL;
}

static void fill_array()
{
	std::vector<uint32_t> words(ARRAY_WORDS, WRITTEN);
	CUDA_MEMCPY2D c = {};

	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = words.data();
	c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	c.dstArray = w.array;
	c.WidthInBytes = ARRAY_PITCH;
	c.Height = ARRAY_ROWS;
	TRY(cuMemcpy2D(&c));
	memcpy((void *)w.managed, words.data(), 4 * ARRAY_WORDS);
}

static void prepare()
{
	w.has_read_right = nullptr;
	w.has_end = false;
	memset(w.control, 0, 256);
	if (!w.block)
		TRY(cuMemAlloc(&w.block, block_size));
	TRY(cuMemsetD32(w.block, BEFORE, block_size / 4));
	TRY(cuMemsetD32(w.source, WRITTEN, block_size / 4));
	if (w.array)
		fill_array();
	settle();
}

/* False: it returned only when the gate was open. */
static bool give(const way &way, pthread_t *opener, double open_after)
{
	double begin;
	bool is_given;

	open_at = now() + GIVE_S;
	pthread_create(opener, NULL, open_gate, NULL);
	way.give();
	use(w.a);
	is_given = !is_open();
	begin = now();
	while (is_given && !is_simulated && now() - begin < BEGIN_S &&
	       !*(volatile uint32_t *)&w.control[STARTED])
		nap(.0002);
	open_at = now() + open_after;
	return is_given;
}

static bool has_ended()
{
	return *(volatile uint32_t *)&w.control[ENDED];
}

static void finish(pthread_t opener)
{
	double begin;

	open_at = 0;
	pthread_join(opener, NULL);
	settle();
	begin = now();
	while (w.has_end && !is_simulated && !has_ended() &&
	       now() - begin < END_S)
		nap(.001);
	settle();
	for (auto &undo : w.undo)
		undo();
	w.undo.clear();
}

static bool has_never_ended()
{
	return w.has_end && !is_simulated && !has_ended();
}

/* As far as the work tells. */
static bool is_over()
{
	return is_open() && !has_never_ended();
}

/* --- the free ------------------------------------------------------------- */

static void *free_in_thread(void *block)
{
	use(w.a);
	TRY(cuMemFree(*(CUdeviceptr *)block));
	return NULL;
}

static CUcontext freeing_context(freeing how)
{
	switch (how) {
	case FREE_B:
	case IN_B:
		return w.b;
	case FREE_G:
	case IN_G:
		return w.g;
	case FREE_D:
	case IN_D:
		return w.d;
	default:
		return w.a;
	}
}

static void free_block(freeing how)
{
	CUdeviceptr block = w.block;
	pthread_t thread;

	use(freeing_context(how));
	switch (how) {
	case FREE:
	case FREE_B:
	case FREE_G:
	case FREE_D:
		TRY(cuMemFree(block));
		break;
	case FREE_THREAD:
		pthread_create(&thread, NULL, free_in_thread, &block);
		pthread_join(thread, NULL);
		break;
	case IN_NB:
		TRY(cuMemFreeAsync(block, w.nb));
		break;
	case IN_NB2:
		TRY(cuMemFreeAsync(block, w.nb2));
		break;
	case IN_LEGACY:
		TRY(cuMemFreeAsync(block, CU_STREAM_LEGACY));
		break;
	case IN_B:
		TRY(cuMemFreeAsync(block, w.b_nb));
		break;
	case IN_D:
		TRY(cuMemFreeAsync(block, w.d_nb));
		break;
	case IN_G:
		TRY(cuMemFreeAsync(block, w.g_nb));
		break;
	}
	use(w.a);
	w.block = 0;
}

static void begin_capture(const way &way)
{
	if (way.is_capturing)
		TRY(cuStreamBeginCapture(w.captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
}

static void end_capture(const way &way)
{
	CUgraph graph;
	CUresult result;

	if (!way.is_capturing)
		return;
	result = cuStreamEndCapture(w.captured, &graph);
	if (result)
		note += std::string(" CAPTURE:") + name_of(result);
	else
		cuGraphDestroy(graph);
}

/* Its milliseconds. */
static double timed_free(const way &way)
{
	double begin = now();

	free_block(way.how);
	return (now() - begin) * 1e3;
}

/* --- without the shim ----------------------------------------------------- */

struct marker {
	const char *name;
	CUcontext context;
	CUevent event;
};

static void record(marker &m)
{
	use(m.context);
	TRY(cuEventCreate(&m.event, CU_EVENT_DISABLE_TIMING));
	TRY(cuCtxRecordEvent(m.context, m.event));
}

/* Its letter if it waits for the work. */
static std::string look_at(const marker &m)
{
	CUresult result = cuEventQuery(m.event);

	if (result == CUDA_ERROR_NOT_READY)
		return m.name;
	return result ? std::string("?") + name_of(result) : "";
}

/* Work that begins with an operation on memory does not tell that it has. */
static bool may_tell_start(const way &way)
{
	for (const char *part : {"alue", "emOp", "memop"})
		if (way.name.find(part) != std::string::npos)
			return false;
	return !is_simulated;
}

static std::string markers_of(const way &way, pthread_t opener)
{
	marker markers[] = {
		{"A", w.a, NULL}, {"B", w.b, NULL}, {"D", w.d, NULL}};
	std::string said;
	bool has_started;

	for (marker &m : markers)
		if (m.context)
			record(m);
	use(w.a);
	nap(LOOK_S);
	for (const marker &m : markers)
		if (m.context)
			said += look_at(m);
	if (said.empty())
		said = "NONE";
	if (is_open())
		said += "(late)";
	if (w.control[ENDED])
		said += "(ended!)";
	if (w.control[TIMEOUT])
		said += "(timeout!)";
	has_started = w.control[STARTED];
	finish(opener);
	for (const marker &m : markers) {
		if (!m.event)
			continue;
		use(m.context);
		TRY(cuEventDestroy(m.event));
	}
	use(w.a);
	if (!has_started && may_tell_start(way))
		said += "(unstarted)";
	if (has_never_ended())
		said += "(never ended!)";
	if (w.control[WRONG])
		said += "(wrong)";
	return said;
}

/* While a capture is open a marker cannot be had. */
static std::string covering(const way &way)
{
	pthread_t opener;

	if (way.is_capturing)
		return "-";
	prepare();
	if (give(way, &opener, MARKERS_S))
		return markers_of(way, opener);
	finish(opener);
	return "submit-blocks";
}

/* After a free that does not wait the work may fault, which is told, too. */
static void judge_native(const way &way)
{
	pthread_t opener;
	char line[120];
	double ms;
	bool is_given, is_waiting;

	note += "covers=" + covering(way);
	prepare();
	is_given = give(way, &opener, FREE_S);
	begin_capture(way);
	ms = timed_free(way);
	is_waiting = is_over();
	end_capture(way);
	snprintf(line, sizeof(line), " free=%s(%.0fms)",
		 !is_given    ? "-"
		 : is_waiting ? "waits"
			      : "AT-ONCE",
		 ms);
	note += line;
	finish(opener);
}

/* --- with the shim -------------------------------------------------------- */

static void trim()
{
	uint64_t (*trim_all)(void);

	*(void **)&trim_all = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	settle();
	if (trim_all)
		trim_all();
}

struct blocks {
	std::vector<CUdeviceptr> all;
	int n_before; /* taken while the gate was shut */
	int n_early;  /* and of them in the block */
	CUresult result;
};

/* Takes blocks until one lies where the work does, or the gate is open. */
static blocks take_blocks(CUdeviceptr freed)
{
	blocks b = {};

	for (int i = 0; i < n_allocs; i++) {
		CUdeviceptr p;
		bool is_shut, is_there;

		b.result = cuMemAlloc(&p, block_size);
		if (b.result)
			break;
		is_shut = !is_open();
		is_there = p < freed + block_size && freed < p + block_size;
		b.n_before += is_shut;
		b.n_early += is_shut && is_there;
		b.all.push_back(p);
		TRY(cuMemsetD32Async(p, NEXT, block_size / 4, w.judge));
		if (!is_shut || is_there)
			break;
	}
	return b;
}

/* Of each block that was written by others, where and what. */
static std::string strange_words(const blocks &b)
{
	std::string said;
	char line[60];

	for (CUdeviceptr p : b.all) {
		TRY(cuMemcpyDtoH(w.seen, p, block_size));
		for (size_t i = 0; i < block_size / 4; i++) {
			if (w.seen[i] == NEXT)
				continue;
			snprintf(line, sizeof(line), "[%zx:%08x]", i * 4,
				 w.seen[i]);
			said += line;
			break;
		}
	}
	return said;
}

static void judge_shim(const way &way)
{
	pthread_t opener;
	CUdeviceptr freed;
	std::string strange;
	char line[160];
	bool is_given, is_waiting;
	double ms;

	trim();
	prepare();
	is_given = give(way, &opener, SHIM_S);
	freed = w.block;
	begin_capture(way);
	ms = timed_free(way);
	is_waiting = is_over();
	blocks b = take_blocks(freed);
	while (way.is_capturing && !is_open())
		nap(.0005);
	end_capture(way);
	finish(opener);
	strange = strange_words(b);
	snprintf(line, sizeof(line),
		 "free=%s(%.0fms) allocs=%d/%zu early=%d%s%s",
		 !is_given    ? "-"
		 : is_waiting ? "waits"
			      : "at-once",
		 ms, b.n_before, b.all.size(), b.n_early,
		 strange.empty() ? "" : " OVERWRITTEN",
		 w.control[WRONG] ? " READ-OTHERS" : "");
	note += line + strange;
	if (b.result)
		note += std::string(" alloc:") + name_of(b.result);
	if (has_never_ended())
		note += " never-ended!";
	for (CUdeviceptr p : b.all)
		TRY(cuMemFree(p));
	if (w.has_read_right && !w.has_read_right())
		note += " READ-OTHERS";
}

void judge(const way &way)
{
	note.clear();
	if (is_native)
		judge_native(way);
	else
		judge_shim(way);
}
