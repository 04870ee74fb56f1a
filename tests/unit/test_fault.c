/* SPDX-License-Identifier: MIT
 *
 * A kernel faulted: who has nothing but that error from then on, and who goes
 * on, on the counting driver.
 */
#include "driver/real.h"
#include "fake_test.h"
#include "pool/capture.h"
#include "pool/state.h"

#define SECOND_CTX ((CUcontext)0x2000)
#define THIRD_CTX ((CUcontext)0x3000)
#define LAG (10 * MS)

static struct vs_fence *fence;
static struct vs_real plain; /* the fake's own functions */
static CUresult fault;	     /* what a context answers ... */
static CUcontext broken;     /* ... if it is this; NULL: none */
static bool is_catching;     /* current, it does so for others, too */
static CUcontext below[4];   /* the current one */
static int n_below;
static struct {
	CUevent event;
	CUcontext ctx;
} events[256];
static int n_events;

static CUresult of(CUcontext ctx)
{
	bool is_so = broken &&
		     (ctx == broken || (is_catching && fake.current == broken));

	return is_so ? fault : CUDA_SUCCESS;
}

static CUcontext owner(CUevent event)
{
	for (int i = n_events - 1; i >= 0; i--) {
		if (events[i].event == event)
			return events[i].ctx;
	}
	return NULL;
}

static CUresult CUDAAPI push(CUcontext ctx)
{
	assert_in_range(n_below, 0, 3);
	below[n_below++] = fake.current;
	fake.current = ctx;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI pop(CUcontext *out)
{
	assert_in_range(n_below, 1, 4);
	*out = fake.current;
	fake.current = below[--n_below];
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI create_event(CUevent *out, unsigned flags)
{
	CUresult r = of(fake.current);

	if (r != CUDA_SUCCESS)
		return r;
	plain.cuEventCreate(out, flags);
	assert_in_range(n_events, 0, 255);
	events[n_events].event = *out;
	events[n_events++].ctx = fake.current;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI record_event(CUcontext ctx, CUevent event)
{
	CUresult r = of(ctx);

	assert_ptr_equal(owner(event), ctx);
	return r != CUDA_SUCCESS ? r : plain.cuCtxRecordEvent(ctx, event);
}

static CUresult CUDAAPI query_event(CUevent event)
{
	CUresult r = of(owner(event));

	return r != CUDA_SUCCESS ? r : plain.cuEventQuery(event);
}

/* Whose error it is does not show. */
static CUresult CUDAAPI wait_event(CUcontext ctx, CUevent event)
{
	CUresult r = of(ctx);

	return r != CUDA_SUCCESS ? r : of(owner(event));
}

static CUresult CUDAAPI synchronize(void)
{
	CUresult r = of(fake.current);

	return r != CUDA_SUCCESS ? r : plain.cuCtxSynchronize();
}

static void install(void)
{
	fresh_driver((uint64_t)4 << 30);
	plain = vs_real;
	fault = CUDA_ERROR_ILLEGAL_ADDRESS;
	broken = NULL;
	is_catching = false;
	n_below = n_events = 0;
	vs_real.cuCtxPushCurrent_v2 = push;
	vs_real.cuCtxPopCurrent_v2 = pop;
	vs_real.cuEventCreate = create_event;
	vs_real.cuCtxRecordEvent = record_event;
	vs_real.cuEventQuery = query_event;
	vs_real.cuCtxWaitEvent = wait_event;
	vs_real.cuCtxSynchronize = synchronize;
}

/* Two contexts of the device, a pool that both have used. */
static void start(void)
{
	vs_pool_ctx_born(SECOND_CTX, 0);
	give(take(64 * MiB));
	give(take(4 * KiB));
	fence = &vs_pool_of(0)->fence;
	fake.lag_ns = LAG;
}

static int fresh(void **state)
{
	(void)state;
	install();
	start();
	return 0;
}

static int fresh_ordered(void **state)
{
	(void)state;
	install();
	vs_knobs.reuse = VS_REUSE_ORDERED;
	start();
	return 0;
}

static int fresh_sync(void **state)
{
	(void)state;
	install();
	vs_knobs.mode = VS_MODE_SYNC;
	start();
	return 0;
}

static int fresh_old(void **state)
{
	(void)state;
	install();
	make_driver_old();
	start();
	return 0;
}

/* Most of the device, again and again: what was freed is used again. */
static void work(void)
{
	for (int i = 0; i < 10; i++) {
		give(take(3 * GiB + (size_t)i * 16 * MiB));
		give(take(4 * KiB));
		fake.now += LAG;
	}
	assert_false(atomic_load(&fence->is_broken));
	/* without markers it is tried for a block to wait with */
	assert_true(fake.natives == 0 || !fence->has_context_events);
}

static CUresult CUDAAPI alloc_faults(CUdeviceptr *p, size_t size)
{
	(void)p, (void)size;
	fake.natives++;
	return fault;
}

/* The driver words the error of the context that has one, each time. */
static void test_the_driver_words_it(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_real.cuMemAlloc_v2 = alloc_faults;
	vs_pool_broken();
	for (int i = 0; i < 3; i++) {
		assert_int_equal(vs_pool_alloc(64 * MiB, &p), fault);
		assert_int_equal(vs_pool_alloc(4 * KiB, &p), fault);
	}
	assert_int_equal(fake.natives, 6);
}

/*
 * The error was that of a stream of another context. The driver has no more
 * memory, since the pool holds it: that says nothing against this one.
 */
static void test_another_was_meant(void **state)
{
	unsigned long natives;

	(void)state;
	give(take(3 * GiB));
	vs_pool_broken();
	give(take(3 * GiB));
	natives = fake.natives;
	for (int i = 0; i < 3; i++) {
		give(take(3 * GiB));
		give(take(4 * KiB));
	}
	assert_int_equal(fake.natives, natives);
}

/* What another context cannot do any more is not waited for. */
static void test_the_others_go_on(void **state)
{
	uint64_t tag;

	(void)state;
	work();
	tag = vs_fence_tag(fence);
	vs_fence_record(fence);
	/* its last marker is in flight, and no later one can be recorded */
	broken = SECOND_CTX;
	work();
	assert_true(vs_fence_wait_tag(fence, tag, 10 * LAG));
	assert_true(vs_ctx_is_beyond(vs_ctx_peek(SECOND_CTX)));
	assert_false(vs_ctx_is_beyond(vs_ctx_peek(FAKE_CTX)));
}

/* Nothing was recorded in it before, and nothing can be. */
static void test_none_can_be_made(void **state)
{
	(void)state;
	vs_pool_ctx_born(THIRD_CTX, 0);
	broken = THIRD_CTX;
	work();
	assert_true(vs_ctx_is_beyond(vs_ctx_peek(THIRD_CTX)));
}

/*
 * It is current, and answers for what belongs to the other one: whose work is
 * still waited for.
 */
static void test_the_current_one_answers(void **state)
{
	CUdeviceptr p = take(64 * MiB);
	uint64_t tag;

	(void)state;
	tag = vs_fence_tag(fence);
	give(p);
	assert_true(vs_fence_record(fence));
	broken = fake.current = SECOND_CTX;
	is_catching = true;
	assert_false(vs_fence_poll(fence));
	assert_false(vs_fence_is_complete(fence, tag));
	assert_true(vs_fence_record(fence));
	assert_false(vs_ctx_is_beyond(vs_ctx_peek(FAKE_CTX)));
	fake.now += LAG;
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, tag));
	assert_false(atomic_load(&fence->is_broken));
	fake.current = FAKE_CTX;
	work();
}

/* The error is its own, though a marker saw it before the program did. */
static void test_a_marker_knows_it_first(void **state)
{
	CUdeviceptr p, q = take(64 * MiB);

	(void)state;
	vs_real.cuMemAlloc_v2 = alloc_faults;
	broken = FAKE_CTX;
	give(q);
	assert_true(vs_fence_record(fence));
	assert_int_equal(vs_pool_alloc(64 * MiB, &p), fault);
	assert_int_equal(vs_pool_alloc(4 * KiB, &p), fault);
	/* the other one is sound, and has what was freed */
	fake.current = SECOND_CTX;
	vs_real.cuMemAlloc_v2 = plain.cuMemAlloc_v2;
	fake.natives = 0;
	work();
}

static CUresult CUDAAPI ask_for_memory(size_t *unused, size_t *total)
{
	CUresult r = of(fake.current);

	fake.natives++;
	return r != CUDA_SUCCESS ? r : plain.cuMemGetInfo_v2(unused, total);
}

/* Its frees are refused; those of others, and of its thread there, are not. */
static void test_its_frees(void **state)
{
	CUdeviceptr p = take(64 * MiB), q = take(4 * KiB),
		    other = take(4 * KiB);

	(void)state;
	vs_real.cuMemGetInfo_v2 = ask_for_memory;
	broken = FAKE_CTX;
	vs_pool_broken();
	for (int i = 0; i < 2; i++) {
		assert_int_equal(vs_pool_free(p), fault);
		assert_int_equal(vs_pool_free(q), fault);
		assert_int_equal(vs_pool_free(q + 512), VS_PASS);
	}
	assert_int_equal(fake.natives, 4);
	fake.current = SECOND_CTX;
	give(other);
	give(take(4 * KiB));
	assert_int_equal(fake.natives, 4);
	vs_pool_ctx_dying(FAKE_CTX);
	assert_int_equal(vs_pool_free(q), VS_PASS);
	assert_false(atomic_load(&vs_pool_of(0)->is_wary));
	fake.natives = 0;
	work();
}

/* The program hears of it by the free, which waits. */
static void test_a_free_that_waits_tells(void **state)
{
	CUdeviceptr p = take(64 * MiB), q = take(4 * KiB), r;

	(void)state;
	vs_real.cuMemGetInfo_v2 = ask_for_memory;
	vs_real.cuMemAlloc_v2 = alloc_faults;
	broken = FAKE_CTX;
	assert_int_equal(vs_pool_free(p), fault);
	assert_int_equal(vs_pool_free(q), fault);
	assert_int_equal(vs_pool_alloc(4 * KiB, &r), fault);
}

static void test_a_free_that_waits_for_others(void **state)
{
	CUdeviceptr p = take(64 * MiB);

	(void)state;
	broken = SECOND_CTX;
	give(p);
	work();
}

/* It was blamed for another. */
static void test_the_frees_of_another(void **state)
{
	CUdeviceptr p = take(64 * MiB), q = take(4 * KiB);

	(void)state;
	vs_real.cuMemGetInfo_v2 = ask_for_memory;
	vs_pool_broken();
	give(p);
	give(q);
	assert_true(atomic_load(&vs_pool_of(0)->is_wary));
	give(take(4 * KiB));
	assert_false(atomic_load(&vs_pool_of(0)->is_wary));
}

/* Those that cuda.h knows of, by number. */
static void test_every_fault(void **state)
{
	static const int codes[] = {214, 220, 226, 700, 702, 710, 714, 715,
				    716, 717, 718, 719, 721, 810, 911};
	CUdeviceptr p;

	for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		fresh(state);
		fault = (CUresult)codes[i];
		broken = SECOND_CTX;
		work();
		fake.current = SECOND_CTX;
		vs_real.cuMemAlloc_v2 = alloc_faults;
		assert_int_equal(vs_pool_alloc(64 * MiB, &p), fault);
	}
}

/* A context with the same handle comes after it. */
static void test_its_end(void **state)
{
	(void)state;
	broken = SECOND_CTX;
	work();
	vs_pool_ctx_dying(SECOND_CTX);
	broken = NULL;
	vs_pool_ctx_born(SECOND_CTX, 0);
	assert_false(vs_ctx_is_beyond(vs_ctx_peek(SECOND_CTX)));
	fake.current = SECOND_CTX;
	work();
}

/* An error that says nothing of a kernel; the pool holds all there is. */
static void test_no_marker_can_be_had(void **state)
{
	CUdeviceptr p;

	(void)state;
	give(take(3 * GiB));
	fake.now += LAG;
	vs_fence_poll(fence);
	assert_true(fake.held >= 3 * GiB);
	fake.fail_record = 1;
	assert_false(vs_fence_record(fence));
	assert_true(atomic_load(&fence->is_broken));
	/* the driver is asked, and has nothing even so */
	fake.natives = 0;
	assert_int_equal(vs_pool_alloc(64 * MiB, &p), CUDA_SUCCESS);
	assert_true(fake.natives > 0);
	assert_true(fake.held < GiB);
}

/*
 * A wait that fails has seen nothing complete. The driver serves for a while,
 * and then the pool again, be it that no marker of before 12.5 can fail.
 */
static void test_a_wait_fails(void **state)
{
	uint64_t held;
	CUdeviceptr p;

	(void)state;
	p = take(3 * GiB);
	held = fake.held;
	fault = CUDA_ERROR_UNKNOWN;
	broken = SECOND_CTX;
	give(p);
	assert_false(vs_fence_wait_tag(fence, vs_fence_tag(fence), UINT64_MAX));
	assert_true(atomic_load(&fence->is_broken));
	fake.natives = 0;
	assert_int_equal(vs_pool_alloc(3 * GiB, &p), CUDA_ERROR_OUT_OF_MEMORY);
	assert_true(fake.natives > 0);
	/* nor was it unmapped */
	assert_in_range(fake.held, 3 * GiB, held);
	broken = NULL;
	fake.now += 10000 * MS;
	vs_pool_tick();
	assert_false(atomic_load(&fence->is_broken));
	give(take(3 * GiB));
}

/* While a capture is open all work is waited for by a free of the driver's. */
static CUresult CUDAAPI free_there(CUdeviceptr p)
{
	CUresult r = of(fake.current);

	(void)p;
	fake.barriers += r == CUDA_SUCCESS;
	return r;
}

static CUresult CUDAAPI alloc_there(CUdeviceptr *p, size_t size)
{
	CUresult r = of(fake.current);

	(void)size;
	if (r == CUDA_SUCCESS)
		*p = 0x5000;
	return r;
}

/* The error was another's, and the driver has memory: this one is cleared. */
static void test_the_driver_serves_who_is_cleared(void **state)
{
	CUdeviceptr p = 0;

	(void)state;
	vs_real.cuMemAlloc_v2 = alloc_there;
	vs_pool_broken();
	assert_int_equal(vs_pool_alloc(64 * MiB, &p), CUDA_SUCCESS);
	assert_int_equal(p, 0x5000);
	assert_int_equal(vs_stat_get(stats(), native), 1);
	assert_false(atomic_load(&vs_pool_of(0)->is_wary));
	give(take(64 * MiB));
	assert_int_equal(vs_stat_get(stats(), native), 1);
}

static void test_beside_a_capture(void **state)
{
	uint64_t tag = vs_fence_tag(fence);

	(void)state;
	vs_real.cuMemAlloc_v2 = alloc_there;
	vs_real.cuMemFree_v2 = free_there;
	begin_capture((CUstream)0x77);
	broken = SECOND_CTX;
	for (unsigned long i = 1; i < 3; i++) {
		assert_true(vs_fence_barrier(fence));
		assert_true(vs_fence_is_complete(fence, tag));
		assert_int_equal(fake.barriers, i);
		tag = vs_fence_tag(fence);
	}
	vs_capture_ended((CUstream)0x77, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_the_driver_words_it, fresh),
		cmocka_unit_test_setup(test_another_was_meant, fresh),
		cmocka_unit_test_setup(test_the_driver_serves_who_is_cleared,
				       fresh),
		cmocka_unit_test_setup(test_the_others_go_on, fresh),
		cmocka_unit_test_setup(test_the_others_go_on, fresh_ordered),
		cmocka_unit_test_setup(test_the_others_go_on, fresh_old),
		cmocka_unit_test_setup(test_none_can_be_made, fresh),
		cmocka_unit_test_setup(test_none_can_be_made, fresh_ordered),
		cmocka_unit_test_setup(test_none_can_be_made, fresh_old),
		cmocka_unit_test_setup(test_the_current_one_answers, fresh),
		cmocka_unit_test_setup(test_a_marker_knows_it_first, fresh),
		cmocka_unit_test_setup(test_its_frees, fresh),
		cmocka_unit_test_setup(test_a_free_that_waits_tells,
				       fresh_sync),
		cmocka_unit_test_setup(test_a_free_that_waits_for_others,
				       fresh_sync),
		cmocka_unit_test_setup(test_the_frees_of_another, fresh),
		cmocka_unit_test_setup(test_every_fault, fresh),
		cmocka_unit_test_setup(test_its_end, fresh),
		cmocka_unit_test_setup(test_its_end, fresh_ordered),
		cmocka_unit_test_setup(test_its_end, fresh_old),
		cmocka_unit_test_setup(test_no_marker_can_be_had, fresh),
		cmocka_unit_test_setup(test_a_wait_fails, fresh_old),
		cmocka_unit_test_setup(test_beside_a_capture, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
