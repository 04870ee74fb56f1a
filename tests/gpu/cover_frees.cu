/* SPDX-License-Identifier: MIT
 *
 * cover: what holds work back before it reaches the block, and who frees that,
 * where, behind what.
 */
#include "cover.h"

/* --- gates ---------------------------------------------------------------- */

static void gate_kernel(const place &, CUstream stream)
{
	launch(GATE, stream);
}

static void gate_host(const place &, CUstream stream)
{
	TRY(cuLaunchHostFunc(stream, host_gate, NULL));
}

static void gate_value(const place &, CUstream stream)
{
	wait_in_stream(stream);
}

static void gate_batch(const place &, CUstream stream)
{
	wait_by_batch(stream);
}

static void gate_event(const place &where, CUstream stream)
{
	use(w.a);
	launch(GATE, w.nb2);
	follow(w.a, w.nb2, *where.context, stream);
	use(*where.context);
}

static void gate_event_of_value(const place &where, CUstream stream)
{
	use(w.a);
	wait_in_stream(w.nb2);
	follow(w.a, w.nb2, *where.context, stream);
	use(*where.context);
}

/* Of a, or of the other context that this process has. */
static void gate_event_of_other(const place &where, CUstream stream)
{
	CUcontext other = w.a;
	CUstream there = w.nb2;

	if (where.of == CTX2 && *where.context != w.b) {
		other = w.b;
		there = w.b_nb;
	} else if (where.of == GREEN) {
		other = w.g;
		there = w.g_nb;
	} else if (where.of >= DEV2) {
		other = w.d;
		there = w.d_nb;
	}
	use(other);
	launch(GATE, there);
	follow(other, there, *where.context, stream);
	use(*where.context);
}

static void gate_graph(const place &where, CUstream stream)
{
	CUgraph graph = make_graph();

	add_kernel(graph, {}, GATE, *where.context);
	launch_once(graph, stream);
}

static const struct {
	const char *name;
	void (*give)(const place &where, CUstream stream);
	bool is_for_base; /* else it needs a second context */
	bool has_set;	  /* also before a set, unless cover_copies.cu has it */
} gates[] = {
	{"spin", gate_kernel, true, false},
	{"host function", gate_host, true, true},
	{"waitValue", gate_value, true, true},
	{"batchMemOp wait", gate_batch, true, true},
	{"event of A.nb2 behind spin", gate_event, true, true},
	{"event of A.nb2 behind waitValue", gate_event_of_value, true, true},
	{"event of other ctx behind spin", gate_event_of_other, false, true},
	{"graph with spin before", gate_graph, true, true},
};

void add_gates()
{
	const unsigned where = at(A_LEGACY, A_NB, B_NB, G_STREAM, D_NB, CTX2_A,
				  GREEN_A, DEV2_A);

	for (int id = 0; id < N_PLACES; id++) {
		const place &p = places[id];

		for (const auto &g : gates) {
			if (!(where & at(id)) ||
			    (p.of == BASE && !g.is_for_base))
				continue;
			add_at(p, std::string(g.name) + " > kernel", [&p, &g] {
				g.give(p, p.stream());
				launch(TOUCH, p.stream());
			});
			if (!g.has_set)
				continue;
			add_at(p, std::string(g.name) + " > memset", [&p, &g] {
				g.give(p, p.stream());
				TRY(cuMemsetD32Async(w.block, WRITTEN,
						     block_size / 4,
						     p.stream()));
			});
		}
	}
}

/* --- who frees ------------------------------------------------------------ */

static void work_in_a()
{
	launch(WORK, w.nb);
}

static void work_in(CUcontext context, CUstream stream)
{
	use(context);
	launch(WORK, stream);
	use(w.a);
}

static void work_in_b()
{
	work_in(w.b, w.b_nb);
}

static void work_in_g()
{
	work_in(w.g, w.g_nb);
}

static void work_in_d()
{
	work_in(w.d, w.d_nb);
}

static const single by_whom[] = {
	{CTX2, "free with B current, kernel/A.nonblocking", work_in_a, FREE_B,
	 false},
	{CTX2, "free with B current, kernel/B.nonblocking", work_in_b, FREE_B,
	 false},
	{GREEN, "free with G current, kernel/A.nonblocking", work_in_a, FREE_G,
	 false},
	{GREEN, "free with G current, kernel/G.stream", work_in_g, FREE_G,
	 false},
	{DEV2, "free with D current, kernel/A.nonblocking", work_in_a, FREE_D,
	 false},
	{DEV2, "free with D current, kernel/D.nonblocking", work_in_d, FREE_D,
	 false},
	{BASE, "free by another thread, kernel/A.nonblocking", work_in_a,
	 FREE_THREAD, false},
	{BASE, "freeAsync in its stream, kernel/A.nonblocking", work_in_a,
	 IN_NB, false},
	{BASE, "freeAsync in legacy, kernel/A.nonblocking", work_in_a,
	 IN_LEGACY, false},
	{CTX2, "freeAsync in B's stream, kernel/A.nonblocking", work_in_a, IN_B,
	 false},
	{CTX2, "freeAsync in B's stream, kernel/B.nonblocking", work_in_b, IN_B,
	 false},
	{DEV2, "freeAsync in D's stream, kernel/A.nonblocking", work_in_a, IN_D,
	 false},
	{DEV2, "freeAsync in D's stream, kernel/D.nonblocking", work_in_d, IN_D,
	 false},
	{GREEN, "freeAsync in G's stream, kernel/A.nonblocking", work_in_a,
	 IN_G, false},
	{GREEN, "freeAsync in G's stream, kernel/G.stream", work_in_g, IN_G,
	 false},
};

/* --- behind what: the free's stream has a wait for the work's event ------- */

static void work_in_a_followed()
{
	work_in_a();
	follow(w.a, w.nb, w.a, w.nb2);
}

static void host_then_touch()
{
	TRY(cuLaunchHostFunc(w.nb, host_gate, NULL));
	follow(w.a, w.nb, w.a, w.nb2);
	launch(TOUCH, w.nb2);
}

static void work_in_b_followed()
{
	work_in_b();
	follow(w.b, w.b_nb, w.a, w.nb2);
}

static void work_in_a_followed_by_b()
{
	work_in_a();
	follow(w.a, w.nb, w.b, w.b_nb);
}

static void work_in_g_followed()
{
	work_in_g();
	follow(w.g, w.g_nb, w.a, w.nb2);
}

static void work_in_d_followed()
{
	work_in_d();
	follow(w.d, w.d_nb, w.a, w.nb2);
}

static void work_in_d_followed_by_work()
{
	work_in_d_followed();
	TRY(cuMemsetD8Async(w.source, 1, 64, w.nb2));
}

static void work_in_d_followed_by_legacy()
{
	work_in_d();
	follow(w.d, w.d_nb, w.a, CU_STREAM_LEGACY);
}

static const single behind_event[] = {
	{BASE, "kernel/A.nonblocking, freeAsync in A.nb2 behind its event",
	 work_in_a_followed, IN_NB2, false},
	{BASE,
	 "host function/A.nonblocking, event waited in A.nb2, kernel there, "
	 "freeAsync",
	 host_then_touch, IN_NB2, false},
	{CTX2, "kernel/B.nonblocking, freeAsync in A.nb2 behind its event",
	 work_in_b_followed, IN_NB2, false},
	{CTX2, "kernel/A.nonblocking, freeAsync in B behind its event",
	 work_in_a_followed_by_b, IN_B, false},
	{GREEN, "kernel/G.stream, freeAsync in A.nb2 behind its event",
	 work_in_g_followed, IN_NB2, false},
	{CTX2, "kernel/B.nonblocking, free behind its event in A.nb2",
	 work_in_b_followed, FREE, false},
};

static const struct {
	const char *name;
	void (*give)();
	freeing how;
} behind_event_of_d[] = {
	{"freeAsync in A.nb2 behind its event", work_in_d_followed, IN_NB2},
	{"free behind its event in A.nb2", work_in_d_followed, FREE},
	{"free behind its event in A.nb2 and a kernel there",
	 work_in_d_followed_by_work, FREE},
	{"free behind its event in A.legacy", work_in_d_followed_by_legacy,
	 FREE},
};

void add_frees()
{
	ADD_SINGLES(by_whom);
	ADD_SINGLES(behind_event);
	for (setup of : {DEV2, LATE})
		for (const auto &b : behind_event_of_d)
			add(of, std::string("kernel/D.nonblocking, ") + b.name,
			    b.give, b.how);
}
