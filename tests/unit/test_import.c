/* SPDX-License-Identifier: MIT
 *
 * Handles that are opened, without an exporter: which are the same, and that
 * one is opened without a look at all others, however many there are.
 */
#include <bsd/sys/tree.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

/* Each step of a walk over all imports counts. */
static unsigned n_steps;
#undef RB_FOREACH
#define RB_FOREACH(x, name, head)                                              \
	for ((x) = RB_MIN(name, head); (x) && ++n_steps;                       \
	     (x) = RB_NEXT(name, head, x))

#include "hook/ipc_import.c" /* NOLINT(bugprone-suspicious-include) */

#include "base/knob.h"
#include "fake.h"

enum { MANY = 2000 };
#define MiB ((size_t)1 << 20)
#define OTHER_CTX ((CUcontext)0x2000)
#define PEER_CTX ((CUcontext)0x3000)

/* What others do, once, at such a step of an open, or of its undoing. */
static void (*in_fetch)(void), (*in_access)(void), (*in_unmap)(void);

static void once(void (**what)(void))
{
	void (*it)(void) = *what;

	*what = NULL;
	if (it)
		it();
}

/* In place of hook/ipc_fetch: any addresses, and nothing is mapped there. */
CUresult vs_ipc_fetch(const struct vs_ipc_handle *h, CUdeviceptr *base_out,
		      uint64_t *bytes_out)
{
	*base_out = ((CUdeviceptr)1 << 44) + h->id * 4 * MiB;
	*bytes_out = 2 * MiB;
	once(&in_fetch);
	return CUDA_SUCCESS;
}

void vs_ipc_unmap(CUdeviceptr base, uint64_t bytes, uint64_t mapped)
{
	(void)base, (void)bytes, (void)mapped;
	once(&in_unmap);
}

static CUresult CUDAAPI set_access(CUdeviceptr p, size_t size,
				   const CUmemAccessDesc *access, size_t count)
{
	(void)p, (void)size, (void)access, (void)count;
	once(&in_access);
	return CUDA_SUCCESS;
}

/* Nothing was given to it. */
static CUresult CUDAAPI event_wait(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

static int fresh(void **state)
{
	(void)state;
	vs_knob_init();
	fake_install((uint64_t)8 << 30);
	vs_real.cuMemSetAccess = set_access;
	vs_real.cuEventSynchronize = event_wait;
	vs_ipc_import_forked();
	return 0;
}

static CUresult open_in(CUcontext ctx, CUdevice device, uint64_t id,
			CUdeviceptr *out)
{
	const struct vs_ipc_handle h = {.id = id, .size = MiB};

	return vs_ipc_import(&h, ctx, device, out);
}

static void test_which_handles_are_the_same(void **state)
{
	CUdeviceptr p, again;

	(void)state;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p), CUDA_SUCCESS);
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &again), CUDA_SUCCESS);
	assert_int_equal(again, p);
	assert_int_equal(open_in(OTHER_CTX, 0, 1, &again),
			 CUDA_ERROR_INVALID_HANDLE);
	/* until it is closed as often as it was opened */
	assert_int_equal(vs_ipc_close(p), CUDA_SUCCESS);
	assert_int_equal(open_in(OTHER_CTX, 0, 1, &again),
			 CUDA_ERROR_INVALID_HANDLE);
	assert_int_equal(vs_ipc_close(p), CUDA_SUCCESS);
	assert_int_equal(open_in(OTHER_CTX, 0, 1, &p), CUDA_SUCCESS);
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &again),
			 CUDA_ERROR_INVALID_HANDLE);
	assert_int_equal(open_in(FAKE_CTX, 0, 2, &again), CUDA_SUCCESS);
	/* not another device's */
	assert_int_equal(open_in(PEER_CTX, 1, 1, &again), CUDA_SUCCESS);
}

static CUdeviceptr opened;

static void open_it(void)
{
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &opened), CUDA_SUCCESS);
}

static void close_it(void)
{
	assert_int_equal(vs_ipc_close(opened), CUDA_SUCCESS);
}

/* A callback opens what is just being opened, and another thread closes it. */
static void test_opened_and_closed_meanwhile(void **state)
{
	CUdeviceptr p;

	(void)state;
	in_fetch = open_it;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p), CUDA_SUCCESS);
	assert_int_equal(p, opened);
	close_it();
	close_it();
	in_fetch = open_it;
	in_unmap = close_it;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p), CUDA_SUCCESS);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), 1);
	assert_int_equal(vs_ipc_close(p), CUDA_SUCCESS);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), 0);
}

static struct vs_ctx *ending;

static void end_it(void)
{
	vs_ipc_ctx_dying(FAKE_CTX);
	ending = vs_pool_ctx_dying(FAKE_CTX);
	vs_ipc_ctx_dying(FAKE_CTX);
}

/* Another thread has ended the context, but for the driver's part of it. */
static void test_ended_meanwhile(void **state)
{
	CUdeviceptr p;

	(void)state;
	in_fetch = end_it;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p),
			 CUDA_ERROR_CONTEXT_IS_DESTROYED);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), 0);
	/* and the next one may have its handle */
	vs_pool_ctx_gone(ending);
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p), CUDA_SUCCESS);
}

static CUresult CUDAAPI no_version(CUcontext ctx, unsigned *version)
{
	(void)ctx, (void)version;
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void end_wholly(void)
{
	end_it();
	vs_pool_ctx_gone(ending);
	vs_real.cuCtxGetApiVersion = no_version;
}

/* And the driver has, too: nothing but the driver knows of it any more. */
static void test_gone_meanwhile(void **state)
{
	CUdeviceptr p;

	(void)state;
	in_fetch = end_wholly;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p),
			 CUDA_ERROR_CONTEXT_IS_DESTROYED);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), 0);
}

static pthread_t ender;
static _Atomic bool is_over;

static void *end_there(void *unused)
{
	end_it();
	atomic_store(&is_over, true);
	return unused;
}

/* Long enough for an end that waits for nobody. */
static void end_beside(void)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	if (pthread_create(&ender, NULL, end_there, NULL))
		fail();
	for (int i = 0; i < 100 && !atomic_load(&is_over); i++)
		nanosleep(&ms, NULL);
}

/* Or it ends while access is given to the first that is open at all. */
static void test_ended_while_it_is_entered(void **state)
{
	CUdeviceptr p;

	(void)state;
	in_access = end_beside;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &p), CUDA_SUCCESS);
	assert_int_equal(pthread_join(ender, NULL), 0);
	vs_pool_ctx_gone(ending);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), 0);
	assert_int_equal(open_in(OTHER_CTX, 0, 1, &p), CUDA_SUCCESS);
}

static void test_one_beside_many(void **state)
{
	CUdeviceptr p, first;

	(void)state;
	assert_int_equal(open_in(FAKE_CTX, 0, 1, &first), CUDA_SUCCESS);
	for (uint64_t id = 2; id <= MANY; id++)
		assert_int_equal(open_in(FAKE_CTX, 0, id, &p), CUDA_SUCCESS);
	n_steps = 0;
	assert_int_equal(open_in(FAKE_CTX, 0, MANY + 1, &p), CUDA_SUCCESS);
	assert_int_equal(vs_ipc_close(p), CUDA_SUCCESS);
	assert_int_equal(open_in(OTHER_CTX, 0, 1, &p),
			 CUDA_ERROR_INVALID_HANDLE);
	assert_int_equal(vs_ipc_close(first), CUDA_SUCCESS);
	assert_int_equal(n_steps, 0);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), MANY - 1);
}

/* Each is closed without a look at those before, which all go afterwards. */
static void test_many_closed_in_a_capture(void **state)
{
	const CUstream stream = (CUstream)1;
	CUdeviceptr p[MANY], last;

	(void)state;
	for (uint64_t id = 0; id < MANY; id++)
		assert_int_equal(open_in(FAKE_CTX, 0, id + 1, &p[id]),
				 CUDA_SUCCESS);
	vs_capture_before_begin(stream);
	vs_capture_after_begin(stream, false, CU_STREAM_CAPTURE_MODE_RELAXED,
			       true);
	n_steps = 0;
	for (int i = 0; i < MANY; i++)
		assert_int_equal(vs_ipc_close(p[i]), CUDA_SUCCESS);
	assert_in_range(n_steps, 0, MANY);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), MANY);
	vs_capture_ended(stream, false);
	assert_int_equal(open_in(FAKE_CTX, 0, MANY + 1, &last), CUDA_SUCCESS);
	assert_int_equal(atomic_load(&vs_ipc_n_imports), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_which_handles_are_the_same, fresh),
		cmocka_unit_test_setup(test_opened_and_closed_meanwhile, fresh),
		cmocka_unit_test_setup(test_ended_meanwhile, fresh),
		cmocka_unit_test_setup(test_gone_meanwhile, fresh),
		cmocka_unit_test_setup(test_ended_while_it_is_entered, fresh),
		cmocka_unit_test_setup(test_one_beside_many, fresh),
		cmocka_unit_test_setup(test_many_closed_in_a_capture, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
