/* SPDX-License-Identifier: MIT */
#include "hook/ipc_fetch.h"

#include <errno.h>
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"
#include "driver/real.h"
#include "driver/vmm.h"

/* How long an exporter may say nothing; it answers within microseconds. */
#define PATIENCE (2000 * VS_MS)
/* One that is alive may be stopped, by a debugger or a frozen container. */
#define STOPPED_PATIENCE (30000 * VS_MS)

struct fetch {
	const struct vs_ipc_handle *h;
	uint64_t deadline;
	int socket;
	uint32_t n, n_all; /* pieces mapped, and to be mapped */
	uint32_t batch;	   /* pieces to ask for at a time */
	CUdeviceptr base;  /* 0: not yet reserved */
	uint64_t bytes, mapped;
	bool may_retry; /* a connection that broke */
	bool is_reset;	/* it did */
};

/* Why an open fails, for people; the program sees only the result. */
static CUresult because(const struct fetch *f, CUresult result, const char *why)
{
	vs_warn("cuIpcOpenMemHandle: cannot open memory of process %u: %s",
		f->h->pid, why);
	return result;
}

/* An exporter that has ended is INVALID_HANDLE to the driver (an H100). */
static CUresult unreachable(struct fetch *f)
{
	switch (errno) {
	case ECONNREFUSED:
		vs_info("cuIpcOpenMemHandle: process %u has ended, or is in "
			"another network namespace",
			f->h->pid);
		return CUDA_ERROR_INVALID_HANDLE;
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case ENOBUFS:
		return because(f, VS_IPC_SHORT,
			       "no file descriptor or no memory here");
	case ETIMEDOUT:
	case EAGAIN:
		return because(f, CUDA_ERROR_INVALID_VALUE,
			       "it does not answer");
	default:
		f->is_reset = true;
		if (f->may_retry)
			return CUDA_ERROR_INVALID_HANDLE;
		return because(f, CUDA_ERROR_INVALID_HANDLE,
			       "the connection broke");
	}
}

static CUresult refused(const struct fetch *f, const struct vs_ipc_reply *a)
{
	switch (a->status) {
	case VS_IPC_GONE:
		vs_info("cuIpcOpenMemHandle: process %u has freed the "
			"allocation",
			f->h->pid);
		return CUDA_ERROR_INVALID_VALUE; /* an H100 */
	case VS_IPC_FAILED:
		return because(f, CUDA_ERROR_MAP_FAILED,
			       vs_real_error((CUresult)a->result));
	default:
		return because(f, CUDA_ERROR_MAP_FAILED,
			       "it makes no sense to this version of the shim");
	}
}

static CUresult reserve(struct fetch *f, const struct vs_ipc_reply *a)
{
	CUresult r;

	if (f->base)
		return CUDA_SUCCESS;
	if (a->bytes == 0 || a->bytes >> 47 || f->h->size > a->bytes ||
	    f->h->offset > a->bytes - f->h->size)
		return refused(f, a);
	r = vs_vmm_reserve(a->bytes, 0, &f->base);
	if (r != CUDA_SUCCESS) {
		f->base = 0;
		return because(f, CUDA_ERROR_MAP_FAILED, "no address space");
	}
	f->bytes = a->bytes;
	f->n_all = a->n_all;
	return CUDA_SUCCESS;
}

/* A want of memory passes; all else is an import that failed. */
static CUresult import_error(CUresult r)
{
	return r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY
		       ? r
		       : CUDA_ERROR_MAP_FAILED;
}

/* The memory stays as long as it is mapped, without the handle. */
static CUresult map_piece(struct fetch *f, int fd, uint64_t size)
{
	CUmemGenericAllocationHandle handle;
	CUresult r;

	if (size == 0 || size > f->bytes - f->mapped)
		return CUDA_ERROR_MAP_FAILED;
	r = vs_real.cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r != CUDA_SUCCESS)
		return because(f, import_error(r), vs_real_error(r));
	r = vs_vmm_map(f->base + f->mapped, size, handle);
	if (r == CUDA_SUCCESS)
		f->mapped += size;
	vs_vmm_release(handle);
	return import_error(r);
}

/* The exporter sent pieces; closes them. */
static CUresult take(struct fetch *f, const struct vs_ipc_reply *a,
		     const int *fds)
{
	CUresult r = CUDA_SUCCESS;
	uint32_t n = 0;

	if (a->n == 0 || a->n > VS_IPC_BATCH)
		r = refused(f, a);
	else
		r = reserve(f, a);
	for (int i = 0; i < VS_IPC_BATCH && fds[i] >= 0; i++) {
		if (r == CUDA_SUCCESS && (uint32_t)i < a->n) {
			r = map_piece(f, fds[i], a->size[i]);
			n++;
		}
		vs_sys_close(fds[i]);
	}
	if (r != CUDA_SUCCESS)
		return r;
	f->n += n;
	/* fewer descriptors than were sent: no more fit here */
	if (n < a->n && f->batch == 1)
		return because(f, VS_IPC_SHORT,
			       "no file descriptor is left here");
	if (n < a->n)
		f->batch = n > 0 ? n : 1;
	return r;
}

/* The exporter, or somebody, is short of descriptors: again in a moment. */
static bool is_retried(const struct vs_ipc_reply *a, uint64_t end)
{
	if (a->status != VS_IPC_BUSY || vs_vmm_clock() >= end)
		return false;
	vs_cancel_free_sleep(2 * VS_MS);
	return true;
}

static ssize_t receive(struct fetch *f, struct vs_ipc_reply *a, int *fds)
{
	uint64_t end = vs_vmm_clock() + STOPPED_PATIENCE;

	for (;;) {
		ssize_t got = vs_ipc_receive(f->socket, a, sizeof(*a), fds,
					     VS_IPC_BATCH, f->deadline);

		if (got >= 0 || errno != ETIMEDOUT)
			return got;
		if (!vs_ipc_is_alive(f->socket)) {
			/* a child of its holds the other end */
			errno = ECONNREFUSED;
			return got;
		}
		if (vs_vmm_clock() >= end) {
			errno = ETIMEDOUT;
			return got;
		}
		f->deadline = vs_vmm_clock() + PATIENCE;
	}
}

/* What came with an answer that has no pieces. */
static void drop(const int *fds)
{
	for (int i = 0; i < VS_IPC_BATCH && fds[i] >= 0; i++)
		vs_sys_close(fds[i]);
}

static CUresult ask(struct fetch *f)
{
	struct vs_ipc_request q = {
		.id = f->h->id, .first = f->n, .max = f->batch};
	uint64_t end = vs_vmm_clock() + PATIENCE;
	struct vs_ipc_reply a = {0};
	int fds[VS_IPC_BATCH];
	ssize_t got;

	memcpy(q.key, f->h->key, sizeof(q.key));
	do {
		f->deadline = vs_vmm_clock() + PATIENCE;
		if (!vs_ipc_send(f->socket, &q, sizeof(q), NULL, 0,
				 f->deadline))
			return unreachable(f);
		got = receive(f, &a, fds);
		if (got == (ssize_t)sizeof(a) && a.status == VS_IPC_OK)
			return take(f, &a, fds);
		drop(fds);
		if (got == 0)
			errno = ECONNRESET;
		if (got <= 0)
			return unreachable(f);
		if (got != (ssize_t)sizeof(a))
			a.status = UINT32_MAX;
	} while (is_retried(&a, end));
	if (a.status == VS_IPC_BUSY)
		return because(f, VS_IPC_SHORT,
			       "it has no file descriptor left");
	return refused(f, &a);
}

static CUresult talk(struct fetch *f)
{
	CUresult r = CUDA_SUCCESS;

	f->deadline = vs_vmm_clock() + PATIENCE;
	f->socket = vs_ipc_connect(f->h->key, f->deadline);
	if (f->socket < 0)
		return unreachable(f);
	/* else somebody could take the name of a process that has ended */
	if (!vs_ipc_is_same_user(f->socket))
		r = because(f, CUDA_ERROR_INVALID_VALUE,
			    "it runs as another user");
	while (r == CUDA_SUCCESS && (f->n == 0 || f->n < f->n_all))
		r = ask(f);
	vs_sys_close(f->socket);
	if (r == CUDA_SUCCESS && f->mapped != f->bytes)
		r = CUDA_ERROR_MAP_FAILED;
	return r;
}

/*
 * An exporter that lost its socket (daemons close all) makes a new one; and one
 * that closed the connection, as this process was stopped, takes it in again.
 */
static CUresult fetch(struct fetch *f)
{
	CUresult r = talk(f);

	if (!f->is_reset)
		return r;
	f->may_retry = false;
	vs_cancel_free_sleep(50 * VS_MS);
	return talk(f);
}

CUresult vs_ipc_fetch(const struct vs_ipc_handle *h, CUdeviceptr *base_out,
		      uint64_t *bytes_out)
{
	struct fetch f = {.h = h, .batch = VS_IPC_BATCH, .may_retry = true};
	CUresult r;

	if (!vs_real.cuMemImportFromShareableHandle)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = fetch(&f);
	if (r != CUDA_SUCCESS) {
		if (f.base)
			vs_ipc_unmap(f.base, f.bytes, f.mapped);
		return r;
	}
	*base_out = f.base;
	*bytes_out = f.bytes;
	return CUDA_SUCCESS;
}

void vs_ipc_unmap(CUdeviceptr base, uint64_t bytes, uint64_t mapped)
{
	if (mapped == 0 || vs_vmm_unmap(base, mapped) == CUDA_SUCCESS)
		vs_vmm_unreserve(base, bytes);
}
