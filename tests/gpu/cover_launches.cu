/* SPDX-License-Identifier: MIT
 *
 * cover: kernels that reach the block: launched in all places and manners, as
 * what another depends on, and by kernels.
 */
#include <pthread.h>

#include "cover.h"

/* --- the list ------------------------------------------------------------- */

std::vector<way> ways;

void add(setup of, const std::string &name, std::function<void()> give,
	 freeing how, bool is_capturing)
{
	ways.push_back({of, std::string(setup_names[of]) + ":" + name, give,
			how, is_capturing});
}

void add_at(const place &where, const std::string &name,
	    std::function<void()> give, bool is_capturing)
{
	auto give_there = [&where, give] {
		use(*where.context);
		give();
		use(w.a);
	};

	add(where.of, name + "/" + where.name, give_there, FREE, is_capturing);
}

void add_rows(const row *rows, size_t n)
{
	for (int id = 0; id < N_PLACES; id++)
		for (const row *r = rows; r < rows + n; r++) {
			auto give = [id, r] { r->give(places[id], r->how); };

			if (r->where & at(id))
				add_at(places[id], r->name, give,
				       r->is_capturing);
		}
}

void add_singles(const single *singles, size_t n)
{
	for (const single *s = singles; s < singles + n; s++)
		add(s->of, s->name, s->give, s->how, s->is_capturing);
}

/* --- plain launches ------------------------------------------------------- */

static void work(const place &where, int)
{
	launch(WORK, where.stream());
}

static const row kernels_everywhere[] = {
	{"kernel",
	 at(A_LEGACY, A_PERTHREAD, A_BLOCKING, A_NB, A_HIGH, A_LOW, B_NB,
	    B_LEGACY, B_PERTHREAD, G_STREAM, G_LEGACY, G_FROM_A, A_FROM_G, D_NB,
	    D_LEGACY, LATE_D),
	 work, 0, false},
};

static const row kernels_beside_capture[] = {
	{"kernel,capture open", at(A_NB, B_NB, G_STREAM, D_NB, LATE_D), work, 0,
	 true},
};

/* In a stream of its own, which is destroyed while the work runs. */
static void in_short_stream(void (*give)(CUstream stream))
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	give(stream);
	TRY(cuStreamDestroy(stream));
}

static void work_in_short_stream()
{
	in_short_stream([](CUstream stream) { launch(WORK, stream); });
}

static void *run_in_a(void *stream)
{
	use(w.a);
	launch(WORK, (CUstream)stream);
	return NULL;
}

static void work_by_short_thread(CUstream stream)
{
	pthread_t thread;

	pthread_create(&thread, NULL, run_in_a, stream);
	pthread_join(thread, NULL);
}

/* Another stream waits for an event that comes before the kernel's end. */
static void launch_with_event(kernel what, CUlaunchAttribute how, CUevent event)
{
	launch(what, w.nb, {how});
	TRY(cuStreamWaitEvent(w.nb2, event, 0));
	launch(NOTHING, w.nb2);
}

static void work_with_completion_event()
{
	CUlaunchAttribute how =
		attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
	CUevent event = make_event();

	how.value.launchCompletionEvent.event = event;
	launch_with_event(WORK, how, event);
}

static void first_with_programmatic_event()
{
	CUlaunchAttribute how =
		attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
	CUevent event = make_event();

	how.value.programmaticEvent.event = event;
	launch_with_event(FIRST, how, event);
}

static void work_by(CUlaunchAttributeID id)
{
	launch(WORK, w.nb, {attribute(id)});
}

static const single kernels_of_base[] = {
	{BASE, "kernel/runtime <<<>>> nonblocking",
	 [] { launch_by_runtime(w.nb); }, FREE, false},
	{BASE, "kernel/runtime <<<>>> NULL", [] { launch_by_runtime(NULL); },
	 FREE, false},
	{BASE, "kernel/stream gone", work_in_short_stream, FREE, false},
	{BASE, "kernel/thread gone, nonblocking",
	 [] { work_by_short_thread(w.nb); }, FREE, false},
	{BASE, "kernel/thread gone, perthread",
	 [] { work_by_short_thread(CU_STREAM_PER_THREAD); }, FREE, false},
	{BASE, "cooperative/A.nonblocking",
	 [] { work_by(CU_LAUNCH_ATTRIBUTE_COOPERATIVE); }, FREE, false},
	{BASE, "cluster/A.nonblocking",
	 [] { work_by(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION); }, FREE, false},
	{BASE, "memSyncDomain/A.nonblocking",
	 [] { work_by(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN); }, FREE, false},
	{BASE, "launch priority/A.nonblocking",
	 [] { work_by(CU_LAUNCH_ATTRIBUTE_PRIORITY); }, FREE, false},
	{BASE, "launch completion event/A.nonblocking",
	 work_with_completion_event, FREE, false},
	{BASE, "programmatic event/A.nonblocking",
	 first_with_programmatic_event, FREE, false},
};

void add_launches()
{
	ADD_ROWS(kernels_everywhere);
	ADD_ROWS(kernels_beside_capture);
	ADD_SINGLES(kernels_of_base);
}

/* --- dependent launches --------------------------------------------------- */

static void depend(kernel what, CUstream stream)
{
	launch(what, stream,
	       {attribute(
		       CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)});
}

/* A stream's last kernel ends while the one before it runs. */
static void outlive(CUstream stream)
{
	launch(FIRST, stream);
	depend(NOTHING, stream);
}

enum { ENDS_FIRST, THIRD_TOO, WAITS, WORKS };

static void give_dependent(const place &where, int how)
{
	CUstream stream = where.stream();

	if (how == WORKS) {
		launch(GATE, stream);
		depend(TOUCH, stream);
		return;
	}
	launch(FIRST, stream);
	depend(how == WAITS ? DEPENDENT : NOTHING, stream);
	if (how == THIRD_TOO)
		depend(NOTHING, stream);
}

static const row dependents[] = {
	{"pdl second ends first",
	 at(A_LEGACY, A_PERTHREAD, A_BLOCKING, A_NB, A_HIGH, A_LOW, B_NB,
	    B_LEGACY, B_PERTHREAD, G_STREAM, G_LEGACY, D_NB, D_LEGACY),
	 give_dependent, ENDS_FIRST, false},
	{"pdl second ends first, third too", at(A_NB), give_dependent,
	 THIRD_TOO, false},
	{"pdl second waits", at(A_NB), give_dependent, WAITS, false},
	{"pdl second works", at(A_NB), give_dependent, WORKS, false},
};

static void outlive_here()
{
	outlive(w.nb);
}

static void outlive_then_follow()
{
	outlive(w.nb);
	follow(w.a, w.nb, w.a, w.nb2);
}

static void outlive_then_set()
{
	outlive(w.nb);
	TRY(cuMemsetD8Async(w.source, 1, 64, w.nb));
}

static void CUDA_CB do_nothing(void *)
{
}

static void outlive_then_host()
{
	outlive(w.nb);
	TRY(cuLaunchHostFunc(w.nb, do_nothing, NULL));
}

static CUgraph graph_of(kernel what, const arguments &more = {})
{
	CUgraph graph = make_graph();

	add_kernel(graph, {}, what, w.a, more);
	return graph;
}

static void outlive_then_graph()
{
	outlive(w.nb);
	launch_once(graph_of(NOTHING), w.nb);
}

static void outlive_graph()
{
	launch_once(graph_of(FIRST), w.nb);
	depend(NOTHING, w.nb);
}

static void give_child_here(child how)
{
	int value = how;

	launch(PARENT, w.nb, {}, {&value});
}

static const single dependents_of_base[] = {
	{BASE, "pdl second ends first, capture open/A.nonblocking",
	 outlive_here, FREE, true},
	{BASE, "pdl second ends first, stream gone",
	 [] { in_short_stream(outlive); }, FREE, false},
	{BASE, "pdl second ends first, freeAsync in its stream/A.nonblocking",
	 outlive_here, IN_NB, false},
	{BASE, "pdl second ends first, freeAsync in A.nb2 behind its event",
	 outlive_then_follow, IN_NB2, false},
	{BASE, "pdl second ends first, then memset/A.nonblocking",
	 outlive_then_set, FREE, false},
	{BASE, "pdl second ends first, then host function/A.nonblocking",
	 outlive_then_host, FREE, false},
	{BASE, "pdl second ends first, then graph/A.nonblocking",
	 outlive_then_graph, FREE, false},
	{BASE, "graph of first, then pdl second/A.nonblocking", outlive_graph,
	 FREE, false},
	{BASE, "cdp fire-and-forget, freeAsync in its stream/A.nonblocking",
	 [] { give_child_here(FIRE_AND_FORGET); }, IN_NB, false},
};

void add_dependents()
{
	ADD_ROWS(dependents);
	ADD_SINGLES(dependents_of_base);
}

/* --- children of kernels -------------------------------------------------- */

static void give_child(const place &where, int how)
{
	launch(PARENT, where.stream(), {}, {&how});
}

static const unsigned OWN = at(A_LEGACY, A_NB),
		      PARENTS = OWN | at(B_NB, B_LEGACY, B_PERTHREAD, G_STREAM,
					 G_LEGACY, D_NB, D_LEGACY);

static const row children[] = {
	{"cdp default stream", PARENTS, give_child, IN_DEFAULT, false},
	{"cdp default stream, capture open", OWN, give_child, IN_DEFAULT, true},
	{"cdp fire-and-forget", PARENTS, give_child, FIRE_AND_FORGET, false},
	{"cdp fire-and-forget, capture open", OWN, give_child, FIRE_AND_FORGET,
	 true},
	{"cdp tail", PARENTS, give_child, TAIL, false},
	{"cdp tail, capture open", OWN, give_child, TAIL, true},
	{"cdp created stream", PARENTS, give_child, IN_CREATED, false},
};

static void give_grandchild(child how)
{
	int value = how;

	launch(GRAND, w.nb, {}, {&value});
}

static void give_child_in(CUstream stream)
{
	int how = FIRE_AND_FORGET;

	launch(PARENT, stream, {}, {&how});
}

static void give_graph_of_parent(child how)
{
	int value = how;

	launch_once(graph_of(PARENT, {&value}), w.nb);
}

static const single children_of_base[] = {
	{BASE, "cdp grandchild fire-and-forget/A.nonblocking",
	 [] { give_grandchild(FIRE_AND_FORGET); }, FREE, false},
	{BASE, "cdp grandchild tail/A.nonblocking",
	 [] { give_grandchild(TAIL); }, FREE, false},
	{BASE, "cdp fire-and-forget, stream gone",
	 [] { in_short_stream(give_child_in); }, FREE, false},
	{BASE, "graph of cdp default stream/A.nonblocking",
	 [] { give_graph_of_parent(IN_DEFAULT); }, FREE, false},
	{BASE, "graph of cdp fire-and-forget/A.nonblocking",
	 [] { give_graph_of_parent(FIRE_AND_FORGET); }, FREE, false},
	{BASE, "graph of cdp tail/A.nonblocking",
	 [] { give_graph_of_parent(TAIL); }, FREE, false},
};

void add_children()
{
	ADD_ROWS(children);
	ADD_SINGLES(children_of_base);
}
