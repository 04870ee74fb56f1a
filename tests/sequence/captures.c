/* SPDX-License-Identifier: MIT */
#include "captures.h"

struct graph graphs[N_GRAPHS];
CUstreamCaptureMode own_mode[N_THREADS];
const char *const mode_names[] = {"global", "thread", "relaxed"};

static _Atomic int n_called;
static int n_to_call;

/* ---- streams ------------------------------------------------------------ */

bool is_created(const struct stream *s)
{
	return s < streams + n_created;
}

CUstream name_of(const struct stream *s)
{
	if (s->is_legacy != IS_PER_THREAD && !is_created(s) && chance(2))
		return NULL;
	return s->handle;
}

int some_created(int *found)
{
	int n = 0;

	for (int i = 0; i < n_created; i++)
		if (streams[i].is_live)
			found[n++] = i;
	/* a thread that captures is about that */
	for (int i = 0; i < n_created; i++)
		if (streams[i].capture && streams[i].capturer == me)
			found[n] = found[n + 1] = i, n += 2;
	return n;
}

void host_function(void *unused)
{
	(void)unused;
	n_called++;
}

void count_calls(struct stream *s, int n)
{
	if (s->capture)
		s->capture->n_calls += n;
	else
		n_to_call += n;
}

bool report(void)
{
	printf("all were called: %d\n", n_called == n_to_call);
	printf("wrong: %d, violations: %ld\n", n_wrong,
	       sim_client_violations());
	return n_wrong == 0;
}

/* ---- captures ----------------------------------------------------------- */

bool no_captures(void)
{
	for (int i = 0; i < n_created; i++) {
		if (!streams[i].capture)
			continue;
		printf(" captures");
		return false;
	}
	return true;
}

bool is_capturer(void)
{
	bool is = false;

	for (int i = 0; i < n_created; i++)
		is = is || (streams[i].capture && streams[i].capturer == me);
	return is;
}

/* Under the shim none of another thread is (README.md, "watched: captures"). */
bool harms_none(bool even_own)
{
	if (own_mode[me] == CU_STREAM_CAPTURE_MODE_RELAXED)
		return true;
	for (int i = 0; i < n_created; i++) {
		const struct stream *s = &streams[i];

		if (!s->capture || s->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
		    (s->capturer == me && !even_own) ||
		    (s->capturer != me &&
		     (s->mode != CU_STREAM_CAPTURE_MODE_GLOBAL ||
		      own_mode[me] != CU_STREAM_CAPTURE_MODE_GLOBAL)))
			continue;
		printf(" beside a capture");
		return false;
	}
	return true;
}

bool has_room(size_t size)
{
	return has_place(size) && harms_no_capture();
}

struct stream *some_capture(void)
{
	struct stream *s = streams;
	uint32_t n = 0, which;

	for (int i = 0; i < n_created; i++)
		n += streams[i].capture != NULL;
	if (n == 0 || current() < 0) {
		printf(" no capture");
		return NULL;
	}
	which = chance(n);
	while (!s->capture || which-- > 0)
		s++;
	printf(" s%d", (int)(s - streams));
	return s;
}

void capture_began(struct stream *s, CUstreamCaptureMode mode)
{
	s->capture = calloc(1, sizeof(*s->capture));
	CHECK(s->capture);
	s->capturer = me;
	s->mode = mode;
}

static bool keep_graph(CUgraph graph, const struct stream *s)
{
	int i = 0;

	while (i < N_GRAPHS && graphs[i].graph)
		i++;
	if (i == N_GRAPHS)
		return false;
	printf(" g%d of %d", i, s->capture->n);
	graphs[i] = (struct graph){
		.graph = graph, .ctx = s->ctx, .does = *s->capture};
	return true;
}

bool capture_ended(struct stream *s, CUgraph graph)
{
	bool is_kept = !graph || keep_graph(graph, s);

	free(s->capture);
	s->capture = NULL;
	return is_kept;
}

void end_own_captures(void)
{
	for (int i = 0; i < n_created; i++)
		if (streams[i].capture && streams[i].capturer == me)
			end_capture(&streams[i]);
}

void op_capture_end(void)
{
	struct stream *s = some_capture();

	if (s && (s->capturer == me || chance(4) == 0))
		end_capture(s);
}

void op_capture_fork(void)
{
	struct stream *s = some_capture();
	struct stream *side = streams;
	struct block *b = some_block(is_linear);
	struct action a;

	if (!s || !b || current() != s->ctx)
		return;
	while (is_created(side) && (!side->is_live || side->ctx != s->ctx ||
				    is_capturing(side) || chance(3) == 0))
		side++;
	if (!is_created(side))
		return;
	a = set_of(b, 0, 1 + chance((uint32_t)b->size), chance(256), 1);
	printf(" by s%d %zu", (int)(side - streams), a.width);
	if (begin_work(s, &a, 1) && set_aside(s, side, &a))
		s->capture->actions[s->capture->n++] = a;
}

bool can_take(const struct stream *s, int n)
{
	if (s->capture && s->capture->n + n > N_ACTIONS) {
		printf(" full");
		return false;
	}
	/* left in another's capture by a call that failed */
	if (!s->capture && is_capturing(s)) {
		printf(" joined");
		return false;
	}
	return true;
}

bool are_captured(struct stream *s, const struct action *actions, int n)
{
	for (int i = 0; s->capture && i < n; i++)
		s->capture->actions[s->capture->n++] = actions[i];
	return s->capture;
}

/* ---- graphs ------------------------------------------------------------- */

struct graph *some_graph(void)
{
	struct graph *found[N_GRAPHS], *g;
	uint32_t n = 0;

	for (g = graphs; g < graphs + N_GRAPHS; g++)
		if (g->graph && is_live(&g->does))
			found[n++] = g;
	if (n == 0) {
		printf(" no graph");
		return NULL;
	}
	g = found[chance(n)];
	printf(" g%d", (int)(g - graphs));
	return g;
}

void op_graph_destroy(void)
{
	struct graph *g = &graphs[chance(N_GRAPHS)];

	printf(" g%d", (int)(g - graphs));
	if (g->graph)
		drop_graph(g);
}

void op_read(void)
{
	struct block *b = some_block(is_ours);
	struct stream *s = null_stream();
	size_t size, at;
	struct action a;
	void *data;

	if (!b || !s)
		return;
	size = 1 + chance((uint32_t)b->size);
	at = chance((uint32_t)(b->size - size + 1));
	printf("+%zu %zu", at, size);
	if (is_pinned(b) && settle(b))
		look_at(b, (unsigned char *)b->bytes + at, at, size);
	a = copy_of(b, at, b, at, 0);
	if (is_pinned(b) || !begin_work(s, &a, 1))
		return;
	data = malloc(size);
	CHECK(data);
	if (read_bytes(b, data, at, size))
		look_at(b, data, at, size);
	free(data);
}
