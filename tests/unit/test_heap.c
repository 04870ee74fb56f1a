/* SPDX-License-Identifier: MIT
 *
 * The heap under random programs on the counting driver (fake.h): whatever is
 * asked, freed, refused and trimmed in whatever order, no byte of physical
 * memory belongs to two blocks at once, everything handed out can be reached,
 * nothing is unmapped too early, and at the end everything is given back.
 *
 * Some blocks are pinned: their bytes are not handed out after their free, but
 * go back to the driver.
 *
 * The shadow that tells is kept by the fake's mappings alone: for each handle
 * one mark for 512 bytes. HEAP_SEED and HEAP_OPS (environment) set where the
 * random numbers begin and how many operations are done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/thread.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/fence.h"
#include "pool/pool.h"
#include "pool/state.h"

#define UNIT 512

enum {
	MAX_BLOCKS = 2048,
	MAX_PENDING = 1 << 16,
	OPS_OF_ROUND = 20000,
	BUCKETS = 1024,
};

/* What a handle's bytes are used for: a mark for each unit. */
struct marks {
	struct marks *next;
	uint64_t handle, n;
	unsigned char used[];
};

struct block {
	CUdeviceptr p;
	uint64_t size;
	uint64_t deadline; /* clock: not to be used again before */
	bool is_pinned;	   /* its bytes are to be used again last */
	unsigned n;
	struct fake_piece *pieces;
};

static struct {
	uint64_t seed, x;
	struct marks *marks[BUCKETS];
	struct block live[MAX_BLOCKS];
	unsigned n_live;
	struct block pending[MAX_PENDING]; /* a ring, oldest first */
	unsigned first, end;
	uint64_t live_bytes, live_max, largest;
	uint64_t palette[16]; /* sizes that come again and again */
	uint64_t again;	      /* bytes handed out that were dead */
	bool has_failures, has_pins, is_contiguous, is_ordered, is_churning;
	unsigned long served, refused, spanning, pinned, shelved;
} s;

static uint64_t random_number(void)
{
	s.x ^= s.x << 13;
	s.x ^= s.x >> 7;
	s.x ^= s.x << 17;
	return s.x * 0x2545f4914f6cdd1d >> 11;
}

static uint64_t below(uint64_t n)
{
	return random_number() % n;
}

static bool one_in(uint64_t n)
{
	return below(n) == 0;
}

static void give_up(const char *what)
{
	fprintf(stderr, "test_heap: seed %llu: %s\n",
		(unsigned long long)s.seed, what);
	abort();
}

static struct marks **marks_of(uint64_t handle)
{
	struct marks **m = &s.marks[handle % BUCKETS];

	while (*m && (*m)->handle != handle)
		m = &(*m)->next;
	return m;
}

/* What a mark says. */
enum { UNUSED, USED, DEAD };

/* Marks a piece as used, or as unused again, or as to be used again last. */
static void mark(const struct fake_piece *piece, unsigned char now)
{
	struct marks **link = marks_of(piece->handle), *m = *link;
	uint64_t from = piece->offset / UNIT, n = piece->size / UNIT;

	if (!m) {
		if (now != USED)
			give_up("memory of a block is gone before its time");
		m = calloc(1, sizeof(*m) + piece->handle_size / UNIT);
		m->handle = piece->handle;
		m->n = piece->handle_size / UNIT;
		*link = m;
	}
	for (uint64_t i = 0; i < n; i += 4096) {
		uint64_t k = n - i < 4096 ? n - i : 4096;

		for (uint64_t j = 0; now == USED && j < k; j++)
			s.again += m->used[from + i + j] == DEAD ? UNIT : 0;
		if (memchr(&m->used[from + i], now, k))
			give_up(now == USED ? "a byte was handed out twice"
					    : "a mark is missing");
		memset(&m->used[from + i], now, k);
	}
}

static void handle_is_gone(uint64_t handle)
{
	struct marks **link = marks_of(handle), *m = *link;

	if (!m)
		return;
	if (memchr(m->used, USED, m->n))
		give_up("memory was released under a block");
	*link = m->next;
	free(m);
}

static void forget(struct block *b)
{
	for (unsigned i = 0; i < b->n; i++)
		mark(&b->pieces[i], b->is_pinned ? DEAD : UNUSED);
	free(b->pieces);
}

/* Blocks whose work is done by now may be used again. */
static void expire(void)
{
	while (s.first != s.end) {
		struct block *b = &s.pending[s.first % MAX_PENDING];

		if (b->deadline > fake.now)
			return;
		if (!s.is_ordered)
			forget(b);
		s.first++;
	}
}

static bool overlaps(const struct block *b, CUdeviceptr at, uint64_t size)
{
	return b->p < at + size && at < b->p + b->size;
}

static void address_goes(CUdeviceptr at, uint64_t size)
{
	expire();
	for (unsigned i = 0; i < s.n_live; i++) {
		if (overlaps(&s.live[i], at, size))
			give_up("a live block was unmapped");
	}
	for (unsigned i = s.first; i != s.end; i++) {
		if (overlaps(&s.pending[i % MAX_PENDING], at, size))
			give_up("a block was unmapped before its work was "
				"done");
	}
}

/* Fewer work ahead of the markers to come: what is pending ends sooner. */
static void set_lag(uint64_t lag)
{
	fake.lag_ns = lag;
	for (unsigned i = s.first; i != s.end; i++) {
		struct block *b = &s.pending[i % MAX_PENDING];

		if (b->deadline > fake.now + lag)
			b->deadline = fake.now + lag;
	}
}

/* Sizes as programs have them: some again and again, some just once. */
static uint64_t any_size(void)
{
	unsigned shift = (unsigned)below(18) + 10;
	uint64_t size = ((uint64_t)1 << shift) + below((uint64_t)1 << shift);

	if (one_in(2))
		size = s.palette[below(16)];
	if (one_in(16))
		size = (size + 2 * MiB - 1) & ~(2 * MiB - 1);
	return size > s.largest ? size % s.largest + 1 : size;
}

/* Follows a new block to its physical bytes. */
static void look_at(struct block *b)
{
	uint64_t left = (b->size + UNIT - 1) / UNIT * UNIT, done = 0;
	struct vs_span span;

	b->n = 0;
	b->pieces = NULL;
	while (left > 0) {
		struct fake_piece piece;

		if (!fake_piece(b->p + done, &piece))
			give_up("a block is not mapped with access");
		if (piece.size > left)
			piece.size = left;
		if (b->n % 8 == 0)
			b->pieces =
				realloc(b->pieces, (b->n + 8) * sizeof(piece));
		b->pieces[b->n++] = piece;
		mark(&piece, USED);
		done += piece.size;
		left -= piece.size;
	}
	s.spanning += b->n > 1;
	if (s.is_contiguous && b->n > 1)
		give_up("a block spans two chunks");
	if (!vs_pool_find(b->p + b->size - 1, &span) || span.base != b->p ||
	    span.size != b->size)
		give_up("a block is not found by its address");
}

static void allocate(void)
{
	struct block b = {.size = any_size()};
	CUdevice device;

	if (s.n_live == MAX_BLOCKS || s.live_bytes + b.size > s.live_max)
		return;
	if (vs_pool_alloc(b.size, &b.p) != CUDA_SUCCESS) {
		s.refused++;
		return;
	}
	expire();
	look_at(&b);
	if (s.again > vs_pool_stats(0, &device)->revived)
		give_up("a dead byte was handed out");
	b.is_pinned = s.has_pins && one_in(40);
	s.pinned += b.is_pinned;
	if (b.is_pinned)
		vs_pool_pin(b.p + below(b.size));
	s.live[s.n_live++] = b;
	s.live_bytes += b.size;
	s.served++;
}

static void release(unsigned i)
{
	struct block b = s.live[i];

	s.live[i] = s.live[--s.n_live];
	s.live_bytes -= b.size;
	b.deadline = fake.now + fake.lag_ns;
	if (s.end - s.first == MAX_PENDING) {
		fake.now += 100 * MS;
		expire();
	}
	/* policy ordered: the bytes may be used again at once, not unmapped */
	if (s.is_ordered)
		forget(&b);
	s.pending[s.end++ % MAX_PENDING] = b;
	if (vs_pool_free(b.p) != CUDA_SUCCESS)
		give_up("a free was refused");
}

static void context_dies(void)
{
	while (s.n_live > 0)
		forget(&s.live[--s.n_live]);
	s.live_bytes = 0;
	for (; s.first != s.end; s.first++) {
		if (!s.is_ordered)
			forget(&s.pending[s.first % MAX_PENDING]);
	}
	end_ctx(FAKE_CTX);
}

static void let_something_fail(void)
{
	unsigned *counts[] = {&fake.fail_create, &fake.fail_map,
			      &fake.fail_access, &fake.fail_unmap,
			      &fake.fail_release};

	*counts[below(5)] = (unsigned)below(4) + 1;
	if (one_in(200))
		fake.fail_record = 1;
}

static void clear_failures(void)
{
	fake.fail_create = fake.fail_map = fake.fail_access = 0;
	fake.fail_unmap = fake.fail_release = fake.fail_record = 0;
}

/* As of a program that is fast, with memory to spare (pool/turnover). */
static void pretend_to_churn(struct vs_pool *pool)
{
	s.shelved += pool->shelved_bytes > 0;
	pool->turnover.is_fast = true;
	pool->need = 0;
}

static void step(void)
{
	fake.now += below(one_in(20) ? 20 * MS : MS / 5);
	if (s.has_failures && one_in(40))
		let_something_fail();
	if (one_in(300))
		set_lag(below(3) * below(30 * MS));
	if (one_in(500))
		vs_pool_trim();
	if (one_in(200))
		vs_pool_tick();
	if (one_in(2000))
		vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE);
	if (one_in(500))
		s.is_churning = !s.is_churning;
	if (s.is_churning && vs_pool_by_index(0))
		pretend_to_churn(vs_pool_by_index(0));
	if (one_in(8000))
		context_dies();
	if (s.n_live > 0 && (one_in(2) || s.live_bytes > s.live_max / 8 * 7))
		release((unsigned)below(s.n_live));
	else
		allocate();
	if (one_in(1500)) {
		unsigned keep = (unsigned)below(s.n_live + 1);

		while (s.n_live > keep)
			release((unsigned)below(s.n_live));
	}
	if (vs_pool_by_index(0) &&
	    atomic_load(&vs_pool_by_index(0)->fence.is_broken))
		context_dies();
}

/* A driver, a pool and a kind of program that were never seen before. */
static void begin_round(void)
{
	const uint64_t chunk_sizes[] = {0, 0, 0, 0, 2 * MiB, 32 * MiB};

	vs_pool_forked();
	vs_thread_forked();
	vs_log_level = VS_LOG_NONE;
	fake_install((512 + below(3584)) * MiB);
	if (one_in(3)) /* regions lie close together, or find no place */
		fake.space = fake.memory * (3 + below(30));
	fake.on_unmap = address_goes;
	fake.on_gone = handle_is_gone;
	s.again = 0;
	s.has_failures = one_in(2);
	s.has_pins = one_in(2);
	s.is_contiguous = one_in(6);
	s.is_ordered = one_in(6);
	s.live_max = fake.memory / 16 * (4 + below(13));
	s.largest = one_in(3) ? s.live_max / 2 : s.live_max / 16;
	for (int i = 0; i < 16; i++)
		s.palette[i] = below(one_in(2) ? s.largest : 8 * MiB) + 1;
	set_lag(one_in(3) ? 0 : below(30 * MS));
	vs_knobs.decay_ms = one_in(4) ? 0 : 100;
	vs_knobs.release_threshold.value = below(512) * MiB;
	vs_knobs.memory_limit.value =
		one_in(5) ? fake.memory / 4 + below(fake.memory) : 0;
	vs_knobs.chunk_size.value = chunk_sizes[below(6)];
	vs_knobs.mode = VS_MODE_POOL;
	vs_knobs.contiguous = s.is_contiguous;
	vs_knobs.reuse = s.is_ordered ? VS_REUSE_ORDERED : VS_REUSE_COMPLETE;
}

static void end_round(void)
{
	struct vs_pool *pool = vs_pool_by_index(0);

	clear_failures();
	if (pool && atomic_load(&pool->fence.is_broken))
		context_dies();
	while (s.n_live > 0)
		release(s.n_live - 1);
	for (int i = 0; i < 3; i++) {
		vs_pool_trim();
		fake.now += 200 * MS;
		expire();
	}
	if (!pool)
		return;
	vs_pool_trim();
	heap_check(pool);
	vs_pool_refresh(0);
	if (fake.held || fake.mappings || fake.handles)
		give_up("something is held at the end");
	if (vs_stat_get(&pool->stats, live) || pool->pending_bytes ||
	    vs_stat_get(&pool->stats, reserved))
		give_up("the books do not end at nothing");
	context_dies(); /* its events */
}

static unsigned long long from_environment(const char *name,
					   unsigned long long value)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : value;
}

static void test_random_programs(void **state)
{
	unsigned long long n_ops = from_environment("HEAP_OPS", 1000000);

	(void)state;
	s.seed = s.x = from_environment("HEAP_SEED", 20250101);
	print_message("HEAP_SEED=%llu\n", (unsigned long long)s.seed);
	for (unsigned long long done = 0; done < n_ops; done += OPS_OF_ROUND) {
		begin_round();
		for (int i = 0; i < OPS_OF_ROUND; i++) {
			step();
			if (i % 997 == 0 && vs_pool_by_index(0))
				heap_check(vs_pool_by_index(0));
		}
		end_round();
	}
	print_message("%lu blocks (%lu over several chunks, %lu pinned), "
		      "%lu refused\n",
		      s.served, s.spanning, s.pinned, s.refused);
	assert_true(s.spanning > 0 && s.pinned > 0 && s.shelved > 0);
}

/* Blocks of many stretches (pool/cover.h), whole and in part; no marks. */
static uint64_t large_size(void)
{
	uint64_t size = (1 + below(24)) * GiB;

	if (one_in(3))
		return size;
	return one_in(2) ? size + below(2 * GiB) : below(3 * GiB) + 1;
}

static void test_large_programs(void **state)
{
	struct vs_span span;
	CUdeviceptr live[64];
	unsigned n = 0;

	(void)state;
	s.x = s.seed ^ 1;
	fresh_driver(140 * GiB);
	vs_knobs.decay_ms = 100;
	for (int i = 0; i < 4000; i++) {
		fake.now += below(20 * MS);
		if (one_in(100))
			vs_pool_trim();
		if (n == 64 || (n > 0 && one_in(2))) {
			unsigned k = (unsigned)below(n);

			assert_int_equal(vs_pool_free(live[k]), CUDA_SUCCESS);
			live[k] = live[--n];
			continue;
		}
		if (vs_pool_alloc(large_size(), &live[n]) != CUDA_SUCCESS)
			continue;
		assert_true(vs_pool_find(live[n], &span));
		for (int j = 0; j < 4; j++) {
			CUdeviceptr p = live[n] + below(span.size);

			assert_true(vs_pool_find(p, &span));
			assert_int_equal(span.base, live[n]);
		}
		n++;
		heap_check(vs_pool_by_index(0));
	}
	while (n > 0)
		vs_pool_free(live[--n]);
	for (int i = 0; i < 3; i++, fake.now += 200 * MS)
		vs_pool_trim();
	heap_check(vs_pool_by_index(0));
	assert_int_equal(fake.held, 0);
	end_ctx(FAKE_CTX);
}

/* What a block of whole stretches costs the host: a word for each. */
static void test_stretches_are_named_once(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr p;

	(void)state;
	fresh_driver(140 * GiB);
	assert_int_equal(vs_pool_alloc(64 * GiB, &p), CUDA_SUCCESS);
	pool = vs_pool_by_index(0);
	assert_int_equal((p - pool->base) % GiB, 0);
	for (uint64_t at = 0; at < 64 * GiB; at += 2 * MiB) {
		const struct vs_spot *spot =
			&pool->chunks.spots[(p + at - pool->base) / VS_GRANULE];

		assert_null(spot->view);
		assert_null(spot->range);
		assert_non_null(vs_view_at(pool, p + at));
		assert_int_equal(vs_heap_at(pool, p + at)->base, p);
	}
	assert_int_equal(vs_pool_free(p), CUDA_SUCCESS);
	end_ctx(FAKE_CTX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_programs),
		cmocka_unit_test(test_large_programs),
		cmocka_unit_test(test_stretches_are_named_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
