/* SPDX-License-Identifier: MIT
 *
 * streams: streams, events, and host functions.
 */
#include "sequence.h"

struct stream streams[N_STREAMS];
const int n_created = N_CREATED;

static struct {
	CUevent handle;
	int ctx;
} events[N_EVENTS];

/* Of the current context: the NULL stream (0), or the thread's own. */
static struct stream *default_stream(int which)
{
	int ctx = current();
	struct stream *s;

	/* whether a green context has any of threads is nowhere said */
	if (ctx < 0 || (ctx == GREEN && which > 0))
		return NULL;
	s = &streams[N_CREATED + ctx * (1 + N_THREADS) + which];
	if (!s->is_live) {
		*s = (struct stream){.is_live = true,
				     .is_legacy = which == 0,
				     .handle = which == 0
						       ? CU_STREAM_LEGACY
						       : CU_STREAM_PER_THREAD,
				     .ctx = ctx};
		TRY(cuEventCreate(&s->event, CU_EVENT_DISABLE_TIMING));
	}
	return s;
}

struct stream *null_stream(void)
{
	struct stream *s;

	/* what waits ends captures, too: not always */
	if (chance(4) > 0 && !harms_no_capture())
		return NULL;
	s = default_stream(IS_PER_THREAD ? 1 + me : 0);
	printf(s ? " null" : " none");
	return s;
}

/* Of those that were created each, the thread's own, and the NULL stream. */
struct stream *some_stream(void)
{
	int found[3 * N_CREATED + 2], n = some_created(found), i;

	if (current() >= 0)
		found[n++] = N_CREATED;
	if (current() >= 0 && current() != GREEN)
		found[n++] = N_CREATED + 1;
	i = n > 0 ? found[chance((uint32_t)n)] : N_CREATED;
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
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (s >= streams + N_CREATED)
		return false;
	return cuStreamIsCapturing(s->handle, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult create_stream(CUstream *stream, int ctx, bool is_blocking)
{
	int least, greatest;

	if (ctx == GREEN)
		return cuGreenCtxStreamCreate(stream, contexts[GREEN].green,
					      CU_STREAM_NON_BLOCKING, 0);
	if (is_blocking)
		return cuStreamCreate(stream, CU_STREAM_DEFAULT);
	if (chance(4) > 0)
		return cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
	TRY(cuCtxGetStreamPriorityRange(&least, &greatest));
	return cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING,
					  greatest);
}

void op_stream_create(void)
{
	struct stream *s = streams;
	CUstream handle;
	int ctx = current();
	bool is_blocking = chance(3) == 0;

	while (s < streams + N_CREATED && s->is_live)
		s++;
	if (s == streams + N_CREATED || ctx < 0)
		return;
	printf(" s%d", (int)(s - streams));
	if (say(create_stream(&handle, ctx, is_blocking)) != CUDA_SUCCESS)
		return;
	*s = (struct stream){.is_live = true,
			     .is_blocking = is_blocking,
			     .handle = handle,
			     .ctx = ctx};
	TRY(cuEventCreate(&s->event, CU_EVENT_DISABLE_TIMING));
}

/* Its last event is that of blocks, and is left. */
void op_stream_destroy(void)
{
	struct stream *s = &streams[chance(N_CREATED)];

	if (!s->is_live || current() < 0 || is_capturing(s))
		return;
	printf(" s%d", (int)(s - streams));
	s->is_live = false;
	say(cuStreamDestroy(s->handle));
}

/* Whether the work is done by then is chance. */
static CUresult sooner_or_later(CUresult result)
{
	return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

void op_stream_query(void)
{
	struct stream *s = some_stream();

	if (s && (!s->capture || chance(4) == 0))
		say(sooner_or_later(cuStreamQuery(name_of(s))));
}

void op_stream_sync(void)
{
	struct stream *s = some_stream();

	if (s && (!s->capture || chance(4) == 0))
		say(cuStreamSynchronize(name_of(s)));
}

void op_ctx_sync(void)
{
	if (chance(6) == 0 || no_captures())
		say(cuCtxSynchronize());
}

/* ---- events ------------------------------------------------------------- */

void op_event_record(void)
{
	uint32_t i = chance(N_EVENTS);
	struct stream *s = some_stream();

	if (!s || current() < 0 || is_capturing(s))
		return;
	printf(" e%u", i);
	if (!events[i].handle) {
		events[i].ctx = current();
		TRY(cuEventCreate(&events[i].handle,
				  chance(2) ? CU_EVENT_DISABLE_TIMING : 0));
	}
	say(cuEventRecord(events[i].handle, name_of(s)));
}

void op_event_wait(void)
{
	uint32_t i = chance(N_EVENTS);
	struct stream *s = some_stream();

	printf(" e%u", i);
	if (s && events[i].handle && (!s->capture || chance(4) == 0))
		say(cuStreamWaitEvent(name_of(s), events[i].handle, 0));
}

void op_event_look(void)
{
	uint32_t i = chance(N_EVENTS);

	printf(" e%u", i);
	if (!events[i].handle)
		return;
	say(sooner_or_later(chance(2) ? cuEventQuery(events[i].handle)
				      : cuEventSynchronize(events[i].handle)));
}

void op_host_call(void)
{
	struct stream *s = some_stream();

	if (s && begin_work(s, NULL, 0) &&
	    say(cuLaunchHostFunc(name_of(s), host_function, NULL)) ==
		    CUDA_SUCCESS)
		note_calls(s, 1);
}

void note_calls(struct stream *s, int n)
{
	count_calls(s, n);
	if (!s->capture)
		contexts[s->ctx].has_calls |= n > 0;
}

void forget_own_streams(void)
{
	for (int i = 0; i < N_CTX; i++)
		streams[N_CREATED + i * (1 + N_THREADS) + 1 + me].is_live =
			false;
}

void forget_streams(int ctx)
{
	for (int i = 0; i < N_STREAMS; i++)
		if (streams[i].ctx == ctx)
			streams[i].is_live = false;
	for (int i = 0; i < N_EVENTS; i++)
		if (events[i].ctx == ctx)
			events[i].handle = NULL;
}
