/* SPDX-License-Identifier: MIT */
#include "sim_ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_context.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_judge.h"
#include "sim_memory.h"

#define MAGIC 0x2d6370692d6d6973u /* "sim-ipc-" */

/* What is in the 64 bytes; the rest is zero. */
struct ticket {
	uint64_t magic;
	int32_t pid, fd;
	uint64_t inode;	      /* the file must still be this one */
	uint64_t start, size; /* of the block, in the exporter */
	uint64_t offset;      /* of the allocation in it */
	uint64_t buffer_id;
	uint32_t bytes_low; /* size of the allocation */
	uint16_t bytes_high;
	uint16_t device;
};

_Static_assert(sizeof(struct ticket) == CU_IPC_HANDLE_SIZE,
	       "a ticket fills a handle");

static void imported_free(struct sim_memory *m)
{
	sim_sys_release(m->mapping_start, m->mapping_size);
	sim_memory_delete(m);
}

static void free_all(const struct sim_context *ctx)
{
	struct sim_memory *m = sim_memory_next(0), *next;

	for (; m; m = next) {
		next = sim_memory_next(m->range.start + m->range.size);
		if (m->kind == SIM_IMPORTED && (!ctx || m->ctx == ctx))
			imported_free(m);
	}
}

void sim_ipc_copies(const struct sim_context *ctx, struct sim_vclock *clock)
{
	struct sim_memory *m = sim_memory_next(0);

	for (; m; m = sim_memory_next(m->range.start + m->range.size))
		if (m->kind == SIM_IMPORTED && m->ctx == ctx)
			sim_judge_heeded(m->range.start, m->range.size, clock);
}

void sim_ipc_free_context(const struct sim_context *ctx)
{
	free_all(ctx);
}

void sim_ipc_reset(void)
{
	free_all(NULL);
}

/* Interior pointers give the base's handle (an H200). */
CUresult sim_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
	struct sim_memory *m = sim_memory_find(dptr);
	struct ticket t = {.magic = MAGIC};
	struct stat st;

	if (!pHandle || !m || m->kind != SIM_LEGACY || m->going)
		return CUDA_ERROR_INVALID_VALUE;
	t.fd = sim_legacy_file(m, &t.offset);
	if (t.fd < 0 || fstat(t.fd, &st))
		return CUDA_ERROR_NOT_SUPPORTED;
	t.pid = getpid();
	t.inode = st.st_ino;
	t.start = m->mapping_start;
	t.size = m->mapping_size;
	t.buffer_id = m->buffer_id;
	t.bytes_low = (uint32_t)m->range.size;
	t.bytes_high = (uint16_t)(m->range.size >> 32);
	t.device = (uint16_t)m->device;
	memcpy(pHandle, &t, sizeof(t));
	return CUDA_SUCCESS;
}

/*
 * The exporter's file: by the system call meant for it, or through /proc. It
 * has none if the memory is freed or the exporter has ended.
 */
static int fetch_file(const struct ticket *t, bool *has_ended_out)
{
	/* on every machine; older headers lack them */
	enum { PIDFD_OPEN = 434, PIDFD_GETFD = 438 };
	struct stat st;
	char path[64];
	int pidfd, fd = -1;

	pidfd = (int)syscall(PIDFD_OPEN, t->pid, 0);
	*has_ended_out = pidfd < 0;
	if (pidfd >= 0) {
		struct pollfd end = {.fd = pidfd, .events = POLLIN};

		fd = (int)syscall(PIDFD_GETFD, pidfd, t->fd, 0);
		*has_ended_out = poll(&end, 1, 0) > 0;
		close(pidfd);
	}
	if (fd < 0) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", t->pid, t->fd);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (fd >= 0 && (fstat(fd, &st) || st.st_ino != t->inode)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* A process that is replaced (exec) counts its buffers from the start again. */
static uint64_t key_of(const struct ticket *t)
{
	return t->inode << 24 ^ t->buffer_id;
}

/* Opened before, in any context of the device? */
static struct sim_memory *find_open(const struct ticket *t, int device)
{
	struct sim_memory *m = sim_memory_next(0);

	for (; m; m = sim_memory_next(m->range.start + m->range.size))
		if (m->kind == SIM_IMPORTED && m->key == key_of(t) &&
		    m->ctx->device == device)
			return m;
	return NULL;
}

static CUresult open_new(const struct ticket *t, CUdeviceptr *ptr_out)
{
	uint64_t bytes = (uint64_t)t->bytes_high << 32 | t->bytes_low;
	int device = sim_thread.current->device, fd;
	struct sim_memory *m;
	bool has_ended;
	uint64_t start;

	/* it "can determine if a mapping is possible" (cuda.h) */
	if (device != t->device && !sim_device_may_be_peers(device, t->device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	fd = fetch_file(t, &has_ended);
	if (fd < 0)
		return has_ended ? CUDA_ERROR_INVALID_HANDLE
				 : CUDA_ERROR_INVALID_VALUE; /* an H100 */
	start = sim_sys_reserve(t->size, SIM_GRANULARITY);
	if (!start || !sim_sys_map(start, t->size, fd, 0)) {
		close(fd);
		return CUDA_ERROR_MAP_FAILED;
	}
	close(fd);
	sim_sys_protect(start, t->size, true, true);
	m = sim_memory_new(SIM_IMPORTED, start + t->offset, bytes);
	m->mapping_start = start;
	m->mapping_size = t->size;
	m->ctx = sim_context_owner(sim_thread.current);
	m->device = t->device;
	m->key = key_of(t);
	m->opened = 1;
	*ptr_out = m->range.start;
	return CUDA_SUCCESS;
}

CUresult sim_cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle,
				   unsigned int Flags)
{
	struct sim_memory *m;
	struct ticket t;

	memcpy(&t, &handle, sizeof(t));
	if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
	    t.magic != MAGIC || !sim_device_valid(t.device))
		return CUDA_ERROR_INVALID_VALUE;
	/* An H200: not in the process that exported it. */
	if (t.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	m = find_open(&t, sim_thread.current->device);
	if (!m)
		return open_new(&t, pdptr);
	/*
	 * Counted; in one context of each device only (cuda.h,
	 * cuIpcOpenMemHandle; the code is an H100's).
	 */
	if (m->ctx != sim_context_owner(sim_thread.current))
		return CUDA_ERROR_INVALID_HANDLE;
	m->opened++;
	*pdptr = m->range.start;
	return CUDA_SUCCESS;
}

CUresult sim_cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle,
				unsigned int Flags)
{
	return sim_cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult sim_cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct sim_memory *m = sim_memory_find(dptr);

	if (!m || m->kind != SIM_IMPORTED || m->range.start != dptr) {
		sim_violation(SIM_V_BAD_FREE,
			      "cuIpcCloseMemHandle of %#llx, "
			      "which is not open",
			      dptr);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (--m->opened)
		return CUDA_SUCCESS;
	sim_judge_gone(m->range.start, m->range.size);
	sim_work_quiesce(m->mapping_start, m->mapping_size);
	imported_free(m);
	return CUDA_SUCCESS;
}
