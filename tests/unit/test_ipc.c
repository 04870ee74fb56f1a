/* SPDX-License-Identifier: MIT
 *
 * Legacy IPC in one process: handles, messages with descriptors, and the
 * pieces behind allocations of a pool on the counting driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "fake.h"
#include "hook/ipc_fetch.h"
#include "hook/ipc_wire.h"
#include "pool/pool.h"
#include "pool/share.h"

#define MiB ((size_t)1 << 20)
#define MS ((uint64_t)1000000)

/* --- handles and messages ------------------------------------------------- */

static void test_a_handle_survives_and_a_broken_one_does_not(void **state)
{
	struct vs_ipc_handle h = {.id = 7, .size = 100, .offset = 512}, got;
	CUipcMemHandle bytes, again;

	(void)state;
	vs_ipc_seal(&h, &bytes);
	vs_ipc_seal(&h, &again);
	assert_memory_equal(&bytes, &again, sizeof(bytes));
	assert_true(vs_ipc_unseal(&bytes, &got));
	assert_memory_equal(&h, &got, sizeof(h));
	for (size_t i = 0; i < sizeof(bytes); i++) {
		again = bytes;
		again.reserved[i] ^= 1;
		assert_false(vs_ipc_unseal(&again, &got));
	}
	memset(&again, 0, sizeof(again));
	assert_false(vs_ipc_unseal(&again, &got));
}

static int count_files(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void make_pair(int pair[2])
{
	assert_int_equal(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair),
		0);
}

static void test_descriptors_travel(void **state)
{
	int pair[2], fds[VS_IPC_BATCH], got[VS_IPC_BATCH], n_before;
	char text[8];

	(void)state;
	n_before = count_files();
	make_pair(pair);
	for (int i = 0; i < VS_IPC_BATCH; i++)
		fds[i] = 0;
	assert_true(vs_ipc_send(pair[0], "hi", 2, fds, VS_IPC_BATCH, 0));
	assert_int_equal(vs_ipc_receive(pair[1], text, sizeof(text), got,
					VS_IPC_BATCH, 0),
			 2);
	for (int i = 0; i < VS_IPC_BATCH; i++) {
		assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
		close(got[i]);
	}
	/* what is not wanted is not kept */
	assert_true(vs_ipc_send(pair[0], "hi", 2, fds, VS_IPC_BATCH, 0));
	assert_int_equal(vs_ipc_receive(pair[1], text, sizeof(text), got, 2, 0),
			 2);
	close(got[0]);
	close(got[1]);
	assert_true(vs_ipc_send(pair[0], "hi", 2, fds, 3, 0));
	assert_int_equal(
		vs_ipc_receive(pair[1], text, sizeof(text), NULL, 0, 0), 2);
	/* none came */
	assert_true(vs_ipc_send(pair[0], "hi", 2, NULL, 0, 0));
	assert_int_equal(vs_ipc_receive(pair[1], text, sizeof(text), got,
					VS_IPC_BATCH, 0),
			 2);
	assert_int_equal(got[0], -1);
	close(pair[0]);
	assert_int_equal(vs_ipc_receive(pair[1], text, sizeof(text), got,
					VS_IPC_BATCH, 0),
			 0);
	assert_false(vs_ipc_send(pair[1], "hi", 2, NULL, 0, 0));
	close(pair[1]);
	assert_int_equal(count_files(), n_before);
}

static uint64_t (*real_clock)(void);

static void test_nobody_waits_for_ever(void **state)
{
	uint64_t start = real_clock();
	char text[8] = {0};
	int pair[2];

	(void)state;
	vs_vmm_clock = real_clock;
	make_pair(pair);
	assert_int_equal(vs_ipc_receive(pair[1], text, sizeof(text), NULL, 0,
					start + 30 * MS),
			 -1);
	assert_int_equal(errno, ETIMEDOUT);
	assert_true(real_clock() - start >= 30 * MS);
	while (vs_ipc_send(pair[0], text, sizeof(text), NULL, 0, 0))
		;
	assert_false(vs_ipc_send(pair[0], text, sizeof(text), NULL, 0,
				 real_clock() + 30 * MS));
	assert_int_equal(errno, ETIMEDOUT);
	close(pair[0]);
	/* nor for one that has gone */
	assert_false(vs_ipc_send(pair[1], text, sizeof(text), NULL, 0,
				 real_clock() + 30 * MS));
	assert_int_equal(errno, EPIPE);
	close(pair[1]);
}

static void test_a_key_finds_its_socket(void **state)
{
	unsigned char key[16], other[16];
	int listener, here, there, n_before;

	(void)state;
	n_before = count_files();
	vs_vmm_clock = real_clock;
	assert_true(vs_ipc_key(key) && vs_ipc_key(other));
	assert_memory_not_equal(key, other, sizeof(key));
	listener = vs_ipc_listen(key);
	assert_true(listener >= 0);
	assert_int_equal(vs_ipc_listen(key), -1);
	here = vs_ipc_connect(key, 0);
	assert_true(here >= 0);
	there = accept(listener, NULL, NULL);
	assert_true(there >= 0);
	assert_true(vs_ipc_is_same_user(here));
	assert_true(vs_ipc_is_same_user(there));
	assert_int_equal(vs_ipc_connect(other, 0), -1);
	assert_int_equal(errno, ECONNREFUSED);
	assert_true(fcntl(listener, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(here, F_GETFD) & FD_CLOEXEC);
	close(listener);
	assert_int_equal(vs_ipc_connect(key, 0), -1);
	close(here);
	close(there);
	assert_int_equal(count_files(), n_before);
}

/* What it prints would go to a peer. */
static void test_a_program_without_standard_input(void **state)
{
	int saved = dup(STDIN_FILENO), listener, here;
	unsigned char key[16];

	(void)state;
	assert_true(saved >= 0 && vs_ipc_key(key));
	close(STDIN_FILENO);
	listener = vs_ipc_listen(key);
	here = vs_ipc_connect(key, 0);
	assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
	dup2(saved, STDIN_FILENO);
	assert_true(listener >= 0 && here >= 0);
	close(saved);
	close(listener);
	close(here);
}

static void *accept_late(void *listener)
{
	const struct timespec tick = {.tv_nsec = 30000000};

	nanosleep(&tick, NULL);
	close(accept(*(int *)listener, NULL, NULL));
	return NULL;
}

/* More at once than a listener keeps waiting. */
static void test_many_connect(void **state)
{
	int listener, here[256], n = 0, last;
	unsigned char key[16];
	pthread_t thread;

	(void)state;
	vs_vmm_clock = real_clock;
	assert_true(vs_ipc_key(key));
	listener = vs_ipc_listen(key);
	assert_true(listener >= 0);
	alarm(20); /* for a wait that never ends */
	while (n < 256 && (last = vs_ipc_connect(key, 0)) >= 0)
		here[n++] = last;
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(pthread_create(&thread, NULL, accept_late, &listener),
			 0);
	last = vs_ipc_connect(key, real_clock() + 30000 * MS);
	alarm(0);
	assert_true(last >= 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	close(last);
	close(listener);
	while (n > 0)
		close(here[--n]);
}

static uint64_t quick_now;

/* Of which two seconds have gone by at each look. */
static uint64_t quick_clock(void)
{
	return quick_now += 2001 * MS;
}

static CUresult CUDAAPI import_none(CUmemGenericAllocationHandle *handle,
				    void *of, CUmemAllocationHandleType type)
{
	(void)handle, (void)of, (void)type;
	return CUDA_ERROR_UNKNOWN;
}

/* It lives, and does not even take importers in; or these are too many. */
static void test_a_stopped_exporter_is_waited_for_half_a_minute(void **state)
{
	uint64_t began = quick_now, bytes;
	int listener, here[256], n = 0;
	struct vs_ipc_handle h = {0};
	CUdeviceptr p;

	(void)state;
	vs_log_level = VS_LOG_NONE;
	vs_real.cuMemImportFromShareableHandle = import_none;
	assert_true(vs_ipc_key(h.key));
	listener = vs_ipc_listen(h.key);
	vs_vmm_clock = quick_clock;
	alarm(20); /* for a wait that never ends */
	assert_int_equal(vs_ipc_fetch(&h, &p, &bytes),
			 CUDA_ERROR_INVALID_VALUE);
	alarm(0);
	assert_in_range(quick_now - began, 30000 * MS, 50000 * MS);
	while (n < 256 && (here[n] = vs_ipc_connect(h.key, 0)) >= 0)
		n++;
	assert_int_equal(vs_ipc_fetch(&h, &p, &bytes),
			 CUDA_ERROR_INVALID_VALUE);
	vs_vmm_clock = real_clock;
	close(listener);
	while (n > 0)
		close(here[--n]);
}

/* --- pieces --------------------------------------------------------------- */

static unsigned n_exports, fail_export;

static CUresult CUDAAPI export_one(void *out,
				   CUmemGenericAllocationHandle handle,
				   CUmemAllocationHandleType type,
				   unsigned long long flags)
{
	(void)handle;
	assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	assert_int_equal(flags, 0);
	if (fail_export && --fail_export == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)out = (int)(1000 + n_exports++);
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI attribute(int *out, CUdevice_attribute which,
				  CUdevice device)
{
	(void)device;
	*out = which != CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK;
	return CUDA_SUCCESS;
}

static int fresh(void **state)
{
	(void)state;
	vs_pool_forked();
	vs_thread_forked();
	vs_log_level = VS_LOG_NONE;
	fake_install((uint64_t)1 << 30);
	vs_real.cuMemExportToShareableHandle = export_one;
	vs_real.cuDeviceGetAttribute = attribute;
	n_exports = fail_export = 0;
	vs_knobs.release_threshold.value = 64 * MiB;
	vs_knobs.chunk_size.value = 2 * MiB;
	vs_knobs.ipc = VS_IPC_EMULATE;
	return 0;
}

static struct vs_span take(size_t size)
{
	struct vs_span span;
	CUdeviceptr p;

	assert_int_equal(vs_pool_alloc(size, &p), CUDA_SUCCESS);
	assert_true(vs_pool_find(p, &span));
	return span;
}

static void check(const struct vs_span *span)
{
	CUdeviceptr first = fake_mapping(span->base);
	struct vs_share share;

	assert_true(vs_share_describe(span->base, span->id, &share));
	assert_int_equal(share.offset, span->base - first);
	assert_true(share.bytes >= share.offset + span->size);
	assert_true(share.n >= 1);
}

static void test_pieces_hold_the_allocation(void **state)
{
	static const size_t sizes[] = {1,	512,	 100000,      MiB,
				       3 * MiB, 9 * MiB, 65 * MiB + 1};
	struct vs_span span;

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			span = take(sizes[i]);
			check(&span);
			if ((i + (size_t)round) % 2)
				vs_pool_free(span.base);
		}
	}
}

static void test_pieces_are_exported_in_parts(void **state)
{
	struct vs_span span = take(65 * MiB);
	uint64_t sizes[VS_IPC_BATCH], sum = 0;
	int fds[VS_IPC_BATCH], next = 1000;
	struct vs_share share;
	unsigned first = 0, n;
	CUresult r;

	(void)state;
	assert_true(vs_share_describe(span.base, span.id, &share));
	assert_true(share.n > VS_IPC_BATCH);
	while (first < share.n) {
		n = vs_share_export(span.base, span.id, first, VS_IPC_BATCH,
				    fds, sizes, &r);
		assert_int_equal(r, CUDA_SUCCESS);
		assert_in_range(n, 1, VS_IPC_BATCH);
		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(fds[i], next++);
			sum += sizes[i];
		}
		first += n;
	}
	assert_int_equal(first, share.n);
	assert_int_equal(sum, share.bytes);
	assert_int_equal(
		vs_share_export(span.base, span.id, first, 1, fds, sizes, &r),
		0);
	assert_int_not_equal(r, CUDA_SUCCESS);
}

static void test_an_export_that_fails_midway(void **state)
{
	struct vs_span span = take(65 * MiB);
	uint64_t sizes[VS_IPC_BATCH];
	int fds[VS_IPC_BATCH];
	CUresult r;

	(void)state;
	fail_export = 3;
	assert_int_equal(vs_share_export(span.base, span.id, 0, VS_IPC_BATCH,
					 fds, sizes, &r),
			 2);
	assert_int_equal(r, CUDA_ERROR_OUT_OF_MEMORY);
	fail_export = 1;
	assert_int_equal(vs_share_export(span.base, span.id, 2, VS_IPC_BATCH,
					 fds, sizes, &r),
			 0);
}

static void test_what_is_not_live_is_not_shared(void **state)
{
	struct vs_span span = take(3 * MiB), small = take(1000);
	struct vs_share share;
	uint64_t sizes[1];
	int fds[1];
	CUresult r;

	(void)state;
	assert_false(vs_share_describe(span.base, span.id + 1, &share));
	assert_false(vs_share_describe(span.base + 512, span.id, &share));
	assert_false(vs_share_describe(4096, span.id, &share));
	vs_pool_free(span.base);
	vs_pool_free(small.base);
	assert_false(vs_share_describe(span.base, span.id, &share));
	assert_false(vs_share_describe(small.base, small.id, &share));
	assert_int_equal(
		vs_share_export(span.base, span.id, 0, 1, fds, sizes, &r), 0);
	assert_int_equal(r, CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(n_exports, 0);
}

static void test_native_leaves_all_to_the_driver(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_knobs.ipc = VS_IPC_NATIVE;
	assert_int_equal(vs_pool_alloc(1000, &p), VS_PASS);
	assert_int_equal(vs_pool_alloc(3 * MiB, &p), VS_PASS);
	assert_int_equal(vs_pool_count(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_a_handle_survives_and_a_broken_one_does_not),
		cmocka_unit_test(test_descriptors_travel),
		cmocka_unit_test(test_nobody_waits_for_ever),
		cmocka_unit_test(test_a_key_finds_its_socket),
		cmocka_unit_test(test_a_program_without_standard_input),
		cmocka_unit_test(test_many_connect),
		cmocka_unit_test(
			test_a_stopped_exporter_is_waited_for_half_a_minute),
		cmocka_unit_test_setup(test_pieces_hold_the_allocation, fresh),
		cmocka_unit_test_setup(test_pieces_are_exported_in_parts,
				       fresh),
		cmocka_unit_test_setup(test_an_export_that_fails_midway, fresh),
		cmocka_unit_test_setup(test_what_is_not_live_is_not_shared,
				       fresh),
		cmocka_unit_test_setup(test_native_leaves_all_to_the_driver,
				       fresh),
	};

	real_clock = vs_vmm_clock;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
