/* SPDX-License-Identifier: MIT */
/* Memory of one process in another: legacy handles, VMM files. */
#include "../sim/sim_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int line[2]; /* socket pair: parent, child */
static pid_t child;

/* The child is made before either process has a driver. */
static void start_pair(int (*body)(void))
{
	start_with("");
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
	child = fork();
	if (child == 0) {
		close(line[0]);
		_exit(body());
	}
	close(line[1]);
	boot("");
}

static void end_pair(void)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(line[0]);
}

static void say(const void *data, size_t size)
{
	assert_int_equal(write(line[0], data, size), (ssize_t)size);
}

/* A child that gave up says nothing: end_pair() tells in which line. */
static void hear(void *data, size_t size)
{
	if (read(line[0], data, size) != (ssize_t)size)
		end_pair();
}

/* In the child no assertion may print: a wrong line number is the exit code */
#define MUST(condition)                                                        \
	do {                                                                   \
		if (!(condition))                                              \
			return __LINE__ % 250 + 1;                             \
	} while (0)

static int open_and_close(void)
{
	CUdeviceptr p, again;
	CUcontext ctx;
	CUipcMemHandle h;
	uint32_t value = 0;
	char go = 0;

	MUST(cuInit(0) == CUDA_SUCCESS);
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	MUST(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	MUST(read(line[1], &h, sizeof(h)) == sizeof(h));
	MUST(cuIpcOpenMemHandle(&p, h, 0) == CUDA_ERROR_INVALID_VALUE);
	MUST(cuIpcOpenMemHandle(&p, h, 1) == CUDA_SUCCESS);
	MUST(cuIpcOpenMemHandle(&again, h, 1) == CUDA_SUCCESS);
	MUST(p == again);
	MUST(cuMemcpyDtoH(&value, p, 4) == CUDA_SUCCESS);
	MUST(value == 0x12345678);
	MUST(cuMemsetD32(p, 99, 1) == CUDA_SUCCESS);
	MUST(cuCtxSynchronize() == CUDA_SUCCESS);
	MUST(cuMemFree(p) == CUDA_ERROR_INVALID_VALUE);
	sim_violations_clear();
	MUST(cuIpcCloseMemHandle(p) == CUDA_SUCCESS);
	MUST(cuIpcCloseMemHandle(p) == CUDA_SUCCESS);
	MUST(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
	MUST(write(line[1], &go, 1) == 1);
	return 0;
}

static void legacy_handles_open_elsewhere(void **state)
{
	CUdeviceptr keep, p, q;
	CUipcMemHandle h, same, other;
	char done;

	(void)state;
	start_pair(open_and_close);
	keep = new_legacy(1000);
	p = new_legacy(1000);
	OK(cuMemsetD32(p, 0x12345678, 1));
	OK(cuIpcGetMemHandle(&h, p));
	OK(cuIpcGetMemHandle(&same, p + 500));
	OK(cuIpcGetMemHandle(&other, keep));
	assert_memory_equal(&h, &same, sizeof(h));
	assert_memory_not_equal(&h, &other, sizeof(h));
	GIVES(cuIpcOpenMemHandle(&q, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	      CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxSynchronize());
	say(&h, sizeof(h));
	hear(&done, 1);
	assert_int_equal(read_word(p), 99);
	OK(cuMemFree(p));
	/* a new allocation at the same address has another handle */
	q = new_legacy(1000);
	assert_int_equal(q, p);
	OK(cuIpcGetMemHandle(&other, q));
	assert_memory_not_equal(&h, &other, sizeof(h));
	end_pair();
	expect_none();
}

/* In one context of each device (cuda.h, cuIpcOpenMemHandle), until it ends. */
static int open_in_contexts(void)
{
	CUcontext first, second, peer;
	CUdeviceptr p, q;
	CUipcMemHandle h;
	char go = 0;

	start_with("SIM_DEVICES=2");
	MUST(cuInit(0) == CUDA_SUCCESS);
	MUST(cuCtxCreate(&first, NULL, 0, 0) == CUDA_SUCCESS);
	MUST(read(line[1], &h, sizeof(h)) == sizeof(h));
	MUST(cuIpcOpenMemHandle(&p, h, 1) == CUDA_SUCCESS);
	MUST(cuCtxCreate(&second, NULL, 0, 0) == CUDA_SUCCESS);
	MUST(cuIpcOpenMemHandle(&q, h, 1) == CUDA_ERROR_INVALID_HANDLE);
	MUST(cuCtxCreate(&peer, NULL, 0, 1) == CUDA_SUCCESS);
	MUST(cuIpcOpenMemHandle(&q, h, 1) == CUDA_SUCCESS);
	MUST(q != p);
	MUST(cuCtxDestroy(first) == CUDA_SUCCESS);
	MUST(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
	MUST(cuCtxSetCurrent(second) == CUDA_SUCCESS);
	MUST(cuIpcOpenMemHandle(&p, h, 1) == CUDA_SUCCESS);
	MUST(cuIpcCloseMemHandle(p) == CUDA_SUCCESS);
	MUST(cuIpcCloseMemHandle(q) == CUDA_SUCCESS);
	start_with("SIM_DEVICES=2 SIM_PEER=0");
	MUST(cuInit(0) == CUDA_SUCCESS);
	MUST(cuCtxCreate(&peer, NULL, 0, 1) == CUDA_SUCCESS);
	MUST(cuIpcOpenMemHandle(&q, h, 1) ==
	     CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	MUST(write(line[1], &go, 1) == 1);
	/* what is freed is not there any more */
	MUST(read(line[1], &go, 1) == 1);
	MUST(cuCtxCreate(&first, NULL, 0, 0) == CUDA_SUCCESS);
	MUST(cuIpcOpenMemHandle(&p, h, 1) == CUDA_ERROR_INVALID_VALUE);
	return 0;
}

static void legacy_handles_open_once_a_device(void **state)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	char go = 0;

	(void)state;
	start_pair(open_in_contexts);
	p = new_legacy(3 * MIB);
	OK(cuIpcGetMemHandle(&h, p));
	say(&h, sizeof(h));
	hear(&go, 1);
	OK(cuMemFree(p));
	say(&go, 1);
	end_pair();
	expect_none();
}

static void CUDA_CB take_a_while(void *done)
{
	usleep(100000);
	*(_Atomic bool *)done = true;
}

/* A copy in a context that has the memory not open, of another device. */
static int copy_elsewhere(void)
{
	static _Atomic bool is_done;
	CUcontext first, peer;
	CUdeviceptr p, own;
	CUipcMemHandle h;
	CUstream s;

	start_with("SIM_DEVICES=2");
	MUST(cuInit(0) == CUDA_SUCCESS);
	MUST(cuCtxCreate(&first, NULL, 0, 0) == CUDA_SUCCESS);
	MUST(read(line[1], &h, sizeof(h)) == sizeof(h));
	for (int i = 0; i < 2; i++) {
		MUST(cuCtxSetCurrent(first) == CUDA_SUCCESS);
		MUST(cuIpcOpenMemHandle(&p, h, 1) == CUDA_SUCCESS);
		MUST(cuCtxCreate(&peer, NULL, 0, 1) == CUDA_SUCCESS);
		MUST(cuMemAlloc(&own, MIB) == CUDA_SUCCESS);
		MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) ==
		     CUDA_SUCCESS);
		is_done = false;
		MUST(cuLaunchHostFunc(s, take_a_while, (void *)&is_done) ==
		     CUDA_SUCCESS);
		MUST(cuMemcpyDtoDAsync(i ? p : own, i ? own : p, MIB, s) ==
		     CUDA_SUCCESS);
		MUST(cuCtxDestroy(first) == CUDA_SUCCESS);
		MUST(is_done);
		MUST(cuStreamSynchronize(s) == CUDA_SUCCESS);
		MUST(cuCtxDestroy(peer) == CUDA_SUCCESS);
		MUST(cuCtxCreate(&first, NULL, 0, 0) == CUDA_SUCCESS);
	}
	MUST(sim_violations() == 0);
	return 0;
}

static void a_context_ends_after_copies_of_others(void **state)
{
	CUipcMemHandle h;

	(void)state;
	start_pair(copy_elsewhere);
	OK(cuIpcGetMemHandle(&h, new_legacy(MIB)));
	say(&h, sizeof(h));
	end_pair();
	expect_none();
}

/* Makes an allocation that holds `value`, and says its handle. */
static int export_word(uint32_t value)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	CUcontext ctx;

	MUST(cuInit(0) == CUDA_SUCCESS);
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	MUST(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	MUST(cuMemAlloc(&p, 4) == CUDA_SUCCESS);
	MUST(cuMemsetD32(p, value, 1) == CUDA_SUCCESS);
	MUST(cuCtxSynchronize() == CUDA_SUCCESS);
	MUST(cuIpcGetMemHandle(&h, p) == CUDA_SUCCESS);
	MUST(write(line[1], &h, sizeof(h)) == sizeof(h));
	return 0;
}

static int export_and_end(void)
{
	return export_word(1);
}

static void a_zombie_has_ended(void **state)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	siginfo_t end;

	(void)state;
	start_pair(export_and_end);
	OK(cuInit(0));
	hear(&h, sizeof(h));
	assert_int_equal(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT),
			 0);
	GIVES(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	      CUDA_ERROR_INVALID_HANDLE);
	end_pair();
	GIVES(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	      CUDA_ERROR_INVALID_HANDLE);
}

/* A program of its own, so that it counts from the start; and which one. */
#define PROGRAM "--program"
/* Not /proc/self/exe, which is valgrind's under that. */
static const char *self;

static int replace(const char *which)
{
	char descriptor[16];

	snprintf(descriptor, sizeof(descriptor), "%d", line[1]);
	execl(self, self, PROGRAM, descriptor, which, NULL);
	return 250;
}

static int be_replaced(void)
{
	return replace("1");
}

/* What each exports are the first two that it makes, of one file. */
static int run_program(const char *descriptor, const char *which)
{
	uint32_t value = (uint32_t)atoi(which) * 2;
	char go;

	line[1] = atoi(descriptor);
	MUST(export_word(value) == 0);
	MUST(export_word(value + 1) == 0);
	MUST(read(line[1], &go, 1) == 1);
	return strcmp(which, "1") == 0 ? replace("2") : 0;
}

static void a_process_is_replaced(void **state)
{
	CUipcMemHandle h;
	CUdeviceptr p[4];
	char go = 0;

	(void)state;
	start_pair(be_replaced);
	for (int i = 0; i < 4; i++) {
		hear(&h, sizeof(h));
		OK(cuIpcOpenMemHandle(&p[i], h,
				      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		if (i % 2)
			say(&go, 1);
	}
	end_pair();
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(read_word(p[i]), i + 2);
		OK(cuIpcCloseMemHandle(p[i]));
	}
	expect_none();
}

static void send_file(int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = "", byte = 0;
	struct iovec data = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &data,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	assert_int_equal(sendmsg(line[0], &msg, 0), 1);
}

static int receive_file(void)
{
	char control[CMSG_SPACE(sizeof(int))] = "", byte;
	struct iovec data = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &data,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(line[1], &msg, 0) == 1 && CMSG_FIRSTHDR(&msg))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static int import_and_read(void)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop;
	CUdeviceptr p;
	CUcontext ctx;
	uint32_t value = 0;
	int fd = receive_file();
	char go = 0;

	MUST(fd >= 0);
	MUST(cuInit(0) == CUDA_SUCCESS);
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	MUST(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	MUST(cuMemImportFromShareableHandle(
		     &h, (void *)(intptr_t)fd,
		     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
	MUST(cuMemGetAllocationPropertiesFromHandle(&prop, h) == CUDA_SUCCESS);
	MUST(prop.location.id == 0);
	MUST(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0) == CUDA_SUCCESS);
	MUST(cuMemMap(p, 2 * MIB, 0, h, 0) == CUDA_SUCCESS);
	MUST(grant(p, 2 * MIB, 0) == CUDA_SUCCESS);
	MUST(write(line[1], &go, 1) == 1);
	/* the exporter has given everything up by now */
	MUST(read(line[1], &go, 1) == 1);
	MUST(cuMemcpyDtoH(&value, p, 4) == CUDA_SUCCESS);
	MUST(value == 4711);
	MUST(sim_violations() == 0);
	return 0;
}

static void mapped_memory_outlives_its_exporter(void **state)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	int fd;
	char go;

	(void)state;
	start_pair(import_and_read);
	p = new_mapping(0, 2 * MIB);
	OK(cuMemsetD32(p, 4711, 1));
	OK(cuCtxSynchronize());
	OK(cuMemRetainAllocationHandle(&h, (void *)p));
	OK(cuMemExportToShareableHandle(
		&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_file(fd);
	close(fd);
	hear(&go, 1);
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemRelease(h));
	say(&go, 1);
	end_pair();
	expect_none();
}

static void nonsense_is_no_handle(void **state)
{
	CUipcMemHandle h;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;

	(void)state;
	boot("");
	memset(&h, 0x55, sizeof(h));
	GIVES(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemImportFromShareableHandle(
		      &handle, (void *)(intptr_t)0,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemImportFromShareableHandle(
		      &handle, (void *)(intptr_t)9999,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	      CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(legacy_handles_open_elsewhere),
		cmocka_unit_test(legacy_handles_open_once_a_device),
		cmocka_unit_test(a_context_ends_after_copies_of_others),
		cmocka_unit_test(a_zombie_has_ended),
		cmocka_unit_test(mapped_memory_outlives_its_exporter),
		cmocka_unit_test(a_process_is_replaced),
		cmocka_unit_test(nonsense_is_no_handle),
	};

	self = argv[0];
	if (argc > 3 && strcmp(argv[1], PROGRAM) == 0)
		return run_program(argv[2], argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
