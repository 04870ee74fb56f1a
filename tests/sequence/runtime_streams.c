/* SPDX-License-Identifier: MIT
 *
 * runtime_streams: streams, events, and host functions.
 */
#include "runtime.h"

struct stream streams[N_STREAMS];
const int n_created = N_CREATED;

static struct {
	cudaEvent_t handle;
	int device;
} events[N_EVENTS];

/* Of the current device: the NULL stream (0), or the thread's own. */
static struct stream *default_stream(int which)
{
	int device = current();
	struct stream *s =
		&streams[N_CREATED + device * (1 + N_THREADS) + which];

	if (!s->is_live) {
		*s = (struct stream){.is_live = true,
				     .is_legacy = which == 0,
				     .handle = which == 0 ? cudaStreamLegacy
							  : cudaStreamPerThread,
				     .device = device};
		TRY(cudaEventCreateWithFlags(&s->event,
					     cudaEventDisableTiming));
	}
	return s;
}

struct stream *null_stream(void)
{
	/* what waits ends captures, too: not always */
	if (chance(4) > 0 && !harms_no_capture())
		return NULL;
	printf(" null");
	return default_stream(IS_PER_THREAD ? 1 + me : 0);
}

/* Of those that were created each, the thread's own, and the NULL stream. */
struct stream *some_stream(void)
{
	int found[3 * N_CREATED + 2], n = some_created(found), i;

	found[n++] = N_CREATED;
	found[n++] = N_CREATED + 1;
	i = found[chance((uint32_t)n)];
	if (i == N_CREATED)
		return null_stream();
	if (i < N_CREATED)
		printf(" s%d", i);
	else
		printf(" own");
	return i < N_CREATED ? &streams[i] : default_stream(1 + me);
}

bool is_capturing(const struct stream *s)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

	if (s >= streams + N_CREATED)
		return false;
	return cudaStreamIsCapturing(s->handle, &status) == cudaSuccess &&
	       status != cudaStreamCaptureStatusNone;
}

void op_stream_create(void)
{
	bool is_blocking = chance(3) == 0;
	struct stream *s = streams;
	cudaStream_t handle;
	cudaError_t result;

	while (s < streams + N_CREATED && s->is_live)
		s++;
	if (s == streams + N_CREATED)
		return;
	printf(" s%d", (int)(s - streams));
	if (is_blocking)
		result = cudaStreamCreate(&handle);
	else
		result = cudaStreamCreateWithFlags(&handle,
						   cudaStreamNonBlocking);
	if (say(result) != cudaSuccess)
		return;
	*s = (struct stream){.is_live = true,
			     .is_blocking = is_blocking,
			     .handle = handle,
			     .device = current()};
	TRY(cudaEventCreateWithFlags(&s->event, cudaEventDisableTiming));
}

/* Its last event is that of blocks, and is left. */
void op_stream_destroy(void)
{
	struct stream *s = &streams[chance(N_CREATED)];

	if (!s->is_live || is_capturing(s))
		return;
	printf(" s%d", (int)(s - streams));
	s->is_live = false;
	say(cudaStreamDestroy(s->handle));
}

/*
 * Whether the work is done by then is chance, and whether that is remembered
 * as an error: so the last one is asked for before, and this one after.
 */
static cudaError_t sooner_or_later(cudaError_t result)
{
	if (result != cudaErrorNotReady)
		return result;
	cudaGetLastError();
	return cudaSuccess;
}

void op_stream_query(void)
{
	struct stream *s = some_stream();

	if (!s || (s->capture && chance(4) > 0))
		return;
	also("last", cudaGetLastError());
	also("query", sooner_or_later(cudaStreamQuery(name_of(s))));
}

void op_stream_sync(void)
{
	struct stream *s = some_stream();

	if (s && (!s->capture || chance(4) == 0))
		say(cudaStreamSynchronize(name_of(s)));
}

/* ---- events ------------------------------------------------------------- */

void op_event_record(void)
{
	uint32_t i = chance(N_EVENTS);
	struct stream *s = some_stream();

	if (!s || is_capturing(s))
		return;
	printf(" e%u", i);
	if (!events[i].handle) {
		events[i].device = current();
		TRY(chance(2)
			    ? cudaEventCreate(&events[i].handle)
			    : cudaEventCreateWithFlags(&events[i].handle,
						       cudaEventDisableTiming));
	}
	say(cudaEventRecord(events[i].handle, name_of(s)));
}

void op_event_wait(void)
{
	uint32_t i = chance(N_EVENTS);
	struct stream *s = some_stream();

	printf(" e%u", i);
	if (s && events[i].handle && (!s->capture || chance(4) == 0))
		say(cudaStreamWaitEvent(name_of(s), events[i].handle, 0));
}

void op_event_look(void)
{
	uint32_t i = chance(N_EVENTS);

	printf(" e%u", i);
	if (!events[i].handle)
		return;
	also("last", cudaGetLastError());
	also("look",
	     sooner_or_later(chance(2)
				     ? cudaEventQuery(events[i].handle)
				     : cudaEventSynchronize(events[i].handle)));
}

void op_host_call(void)
{
	struct stream *s = some_stream();

	if (s && begin_work(s, NULL, 0) &&
	    say(cudaLaunchHostFunc(name_of(s), host_function, NULL)) ==
		    cudaSuccess)
		count_calls(s, 1);
}

void forget_own_streams(void)
{
	for (int d = 0; d < MOST_DEVICES; d++)
		streams[N_CREATED + d * (1 + N_THREADS) + 1 + me].is_live =
			false;
}

void forget_streams(int device)
{
	for (int i = 0; i < N_STREAMS; i++)
		if (streams[i].device == device)
			streams[i].is_live = false;
	for (int i = 0; i < N_EVENTS; i++)
		if (events[i].device == device)
			events[i].handle = NULL;
}
