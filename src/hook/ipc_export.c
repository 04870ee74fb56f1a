/* SPDX-License-Identifier: MIT */
#include "hook/ipc_export.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"
#include "base/uthash_meta.h"
#include "driver/loader.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "hook/ipc_wire.h"
#include "pool/share.h"

#define MAX_CLIENTS 32
/* A client asks again at once; one that is silent for so long was stopped. */
#define CLIENT_PATIENCE (10000 * VS_MS)
/* How often the thread looks when something is in its way. */
#define SOON_MS 20
/* How often it looks for clients that were silent for too long. */
#define IDLE_MS 1000
#define EXIT_WAIT_MS 20

/* A handle that was made. Its allocation may have been freed since. */
struct exported {
	uint64_t id; /* of the span; key */
	CUdeviceptr base;
	unsigned n_pieces;
	uint64_t bytes; /* of all pieces */
	CUipcMemHandle handle;
	UT_hash_handle hh;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct exported *exports;  /* lock */
static unsigned purge_at = 64;	  /* lock */
static unsigned char own_key[16]; /* written once, before has_key */
static _Atomic bool has_key;

/*
 * A descriptor of the serving thread. Programs that become daemons close every
 * descriptor there is, and the number may be another file's soon: so what it
 * was is kept beside it, and looked at before it is used.
 */
struct slot {
	_Atomic int fd; /* -1: none */
	dev_t device;
	ino_t inode;
	uint64_t seen; /* clock, ns */
};

#define NO_SLOT                                                                \
	{                                                                      \
		.fd = -1                                                       \
	}

/* The thread's own, once it runs. A forked child closes them. */
static struct slot listener = NO_SLOT;
static struct slot clients[MAX_CLIENTS] = {[0 ... MAX_CLIENTS - 1] = NO_SLOT};
static int in_flight[VS_IPC_BATCH] = {[0 ... VS_IPC_BATCH - 1] = -1};
static _Atomic bool is_stopping, is_busy;

/* Owns `fd` from now on, also when it answers false. */
static bool fill_slot(struct slot *s, int fd)
{
	struct stat now;

	if (vs_sys_fstat(fd, &now) != 0) {
		vs_sys_close(fd);
		return false;
	}
	s->device = now.st_dev;
	s->inode = now.st_ino;
	s->seen = vs_vmm_clock();
	atomic_store(&s->fd, fd);
	return true;
}

static bool is_ours(const struct slot *s)
{
	int fd = atomic_load(&s->fd);
	struct stat now;

	return fd >= 0 && vs_sys_fstat(fd, &now) == 0 &&
	       now.st_dev == s->device && now.st_ino == s->inode;
}

/*
 * Taken out before it is closed: a child that is forked in between keeps a
 * descriptor too many, rather than close one of the program's.
 */
static void close_slot(struct slot *s)
{
	bool is_open = is_ours(s);
	int fd = atomic_exchange(&s->fd, -1);

	if (is_open)
		vs_sys_close(fd);
}

/* --- handles -------------------------------------------------------------- */

static struct exported *find(uint64_t id)
{
	struct exported *e;

	HASH_FIND(hh, exports, &id, sizeof(id), e);
	return e;
}

static void purge(void)
{
	struct exported *e, *next;
	struct vs_span span;

	HASH_ITER (hh, exports, e, next) {
		if (vs_pool_find(e->base, &span) && span.id == e->id)
			continue;
		HASH_DEL(exports, e);
		vs_meta_free(e, sizeof(*e));
	}
	purge_at = 64 + 2 * HASH_COUNT(exports);
}

/* The allocation cannot travel: chunks of this device have no descriptors. */
static CUresult refuse(void)
{
	static _Atomic bool is_told;

	if (!atomic_exchange(&is_told, true))
		vs_warn("cuIpcGetMemHandle fails for memory whose chunks the "
			"driver cannot share: VMMSHIM_IPC=native takes memory "
			"from the driver");
	return VS_PASS;
}

static CUresult make(const struct vs_span *span, struct exported **out)
{
	struct vs_ipc_handle h = {0};
	struct vs_share share;
	struct exported *e;

	if (!vs_share_describe(span->base, span->id, &share))
		return refuse();
	if (HASH_COUNT(exports) >= purge_at)
		purge();
	e = vs_meta_alloc(sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(h.key, own_key, sizeof(h.key));
	h.id = e->id = span->id;
	h.size = span->size;
	h.offset = share.offset;
	h.device = vs_vmm_device_id(span->device);
	h.pid = (uint32_t)vs_sys_getpid();
	vs_ipc_seal(&h, &e->handle);
	e->base = span->base;
	e->n_pieces = share.n;
	e->bytes = share.bytes;
	HASH_ADD(hh, exports, id, sizeof(e->id), e);
	/* uthash leaves hh.tbl NULL when it had no memory */
	if (!e->hh.tbl) {
		vs_meta_free(e, sizeof(*e));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* an importer may look at it for long: not to be used again */
	vs_pool_pin(span->base);
	*out = e;
	return CUDA_SUCCESS;
}

/* --- the serving thread --------------------------------------------------- */

static bool look_up(uint64_t id, struct exported *out)
{
	struct exported *e;

	pthread_mutex_lock(&lock);
	e = find(id);
	if (e)
		*out = *e;
	pthread_mutex_unlock(&lock);
	return e != NULL;
}

/* Fills reply and in_flight. */
static void answer(const struct vs_ipc_request *q, struct vs_ipc_reply *a)
{
	struct exported e;
	CUresult r;

	if (!vs_ipc_is_own_key(q->key) || !look_up(q->id, &e) ||
	    q->first >= e.n_pieces) {
		a->status = VS_IPC_GONE;
		return;
	}
	a->n_all = e.n_pieces;
	a->bytes = e.bytes;
	a->n = vs_share_export(e.base, e.id, q->first,
			       q->max < VS_IPC_BATCH ? q->max : VS_IPC_BATCH,
			       in_flight, a->size, &r);
	if (a->n > 0)
		return;
	a->result = r;
	a->status = VS_IPC_FAILED;
	if (r == CUDA_ERROR_INVALID_VALUE)
		a->status = VS_IPC_GONE;
	/* what the driver says when it gets no descriptor */
	else if (r == CUDA_ERROR_OPERATING_SYSTEM ||
		 r == CUDA_ERROR_OUT_OF_MEMORY)
		a->status = VS_IPC_BUSY;
	vs_debug("cuMemExportToShareableHandle failed: %s", vs_real_error(r));
}

static bool reply(int socket, struct vs_ipc_reply *a)
{
	bool is_sent = vs_ipc_send(socket, a, sizeof(*a), in_flight, a->n, 0);

	for (unsigned i = 0; i < a->n; i++) {
		int fd = in_flight[i];

		in_flight[i] = -1;
		vs_sys_close(fd);
	}
	return is_sent;
}

/* One request; false when the client is done with. */
static bool serve(int socket)
{
	struct vs_ipc_reply a = {.status = VS_IPC_OK};
	struct vs_ipc_request q;
	ssize_t n = vs_ipc_receive(socket, &q, sizeof(q), NULL, 0, 0);

	if (n < 0 && (errno == EAGAIN || errno == ETIMEDOUT))
		return true;
	if (n != (ssize_t)sizeof(q))
		return false;
	answer(&q, &a);
	if (reply(socket, &a))
		return true;
	if (errno != ETOOMANYREFS)
		return false;
	/* too many descriptors of this user are on their way */
	memset(&a, 0, sizeof(a));
	a.status = VS_IPC_BUSY;
	return reply(socket, &a);
}

/* --- its socket ----------------------------------------------------------- */

static bool open_listener(void)
{
	int fd = vs_ipc_listen(own_key);

	return fd >= 0 && fill_slot(&listener, fd);
}

static void keep_listening(void)
{
	if (is_ours(&listener))
		return;
	close_slot(&listener);
	open_listener();
}

/*
 * Takes clients in while there is room. Those of other users are shut out at
 * once, or they could take all of it. False: look again soon.
 */
static bool welcome(void)
{
	for (int i = 0; i < MAX_CLIENTS; i++) {
		int fd;

		if (atomic_load(&clients[i].fd) >= 0)
			continue;
		fd = vs_fd_clear(vs_sys_accept(atomic_load(&listener.fd),
					       SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (fd < 0)
			return errno == EAGAIN || errno == EINTR ||
			       errno == ECONNABORTED;
		if (vs_ipc_is_same_user(fd))
			fill_slot(&clients[i], fd);
		else
			vs_sys_close(fd);
	}
	return true;
}

/*
 * Fills polls[0] for the listener, polls[i + 1] for client i; -1 is ignored.
 * Returns how many there are: up to the last client, since poll() refuses more
 * than the program may have descriptors (RLIMIT_NOFILE).
 */
static int prepare(struct pollfd *polls, bool is_held_up)
{
	bool has_room = false;
	int n = 1;

	for (int i = 0; i < MAX_CLIENTS; i++) {
		polls[i + 1].fd = atomic_load(&clients[i].fd);
		polls[i + 1].events = POLLIN;
		if (polls[i + 1].fd >= 0)
			n = i + 2;
		else
			has_room = true;
	}
	polls[0].fd = has_room && !is_held_up ? atomic_load(&listener.fd) : -1;
	polls[0].events = POLLIN;
	return n;
}

/* Whether there may be something to do; `n` of polls. */
static bool look(struct pollfd *polls, int n, bool is_held_up)
{
	bool has_clients = n > 1;

	if (vs_sys_poll(polls, (size_t)n,
			is_held_up    ? SOON_MS
			: has_clients ? IDLE_MS
				      : -1) >= 0)
		return true;
	if (errno == EINTR)
		return false;
	/*
	 * The program may have fewer descriptors by now, or no poll(). Clients
	 * that have gone keep some of them, so each is looked at all the same.
	 */
	vs_cancel_free_sleep(SOON_MS * VS_MS);
	for (int i = 0; i < n; i++)
		polls[i].revents = POLLIN;
	return true;
}

static void serve_clients(const struct pollfd *polls, int n)
{
	uint64_t now = vs_vmm_clock();

	for (int i = 0; i < n; i++) {
		if (polls[i + 1].fd < 0)
			continue;
		if (polls[i + 1].revents) {
			clients[i].seen = now;
			if (is_ours(&clients[i]) && serve(polls[i + 1].fd))
				continue;
		} else if (now - clients[i].seen < CLIENT_PATIENCE) {
			continue;
		}
		close_slot(&clients[i]);
	}
}

static void *run(void *unused)
{
	struct pollfd polls[MAX_CLIENTS + 1];
	bool is_held_up = false;

	/* for good: a callback that the driver makes here is not served */
	vs_thread_go_within(vs_thread_self());
	pthread_setname_np(pthread_self(), "vmmshim-ipc");
	while (!atomic_load(&is_stopping)) {
		int n = prepare(polls, is_held_up);
		bool is_any = look(polls, n, is_held_up);

		atomic_store(&is_busy, true);
		is_held_up = false;
		/* the end of the process stops first, then looks at is_busy */
		if (!atomic_load(&is_stopping) && is_any) {
			serve_clients(polls, n - 1);
			keep_listening();
			is_held_up =
				atomic_load(&listener.fd) < 0 || !welcome();
		}
		atomic_store(&is_busy, false);
	}
	return unused;
}

/* Before the exit handlers of CUDA: no driver call may meet its end. */
static void at_exit(void)
{
	atomic_store(&is_stopping, true);
	for (int i = 0; i < EXIT_WAIT_MS && atomic_load(&is_busy); i++)
		vs_cancel_free_sleep(VS_MS);
}

static bool start_thread(void)
{
	int error = vs_thread_start(run, NULL, vs_loader_tls());

	if (error)
		errno = error;
	else
		atexit(at_exit);
	return error == 0;
}

/* Makes key, socket and thread, once; lock. */
static bool start(void)
{
	static bool is_told;

	if (atomic_load(&has_key))
		return true;
	if (vs_ipc_key(own_key) && open_listener()) {
		if (start_thread()) {
			atomic_store(&has_key, true);
			vs_info("legacy IPC handles of this process open in "
				"processes under the shim only; to share "
				"memory with others set VMMSHIM_IPC=native "
				"for all of them");
			return true;
		}
		close_slot(&listener);
	}
	if (!is_told)
		vs_warn("cuIpcGetMemHandle fails: no socket or thread to serve "
			"importers (errno %d); VMMSHIM_IPC=native needs none",
			errno);
	is_told = true;
	return false;
}

CUresult vs_ipc_export(const struct vs_span *span, CUipcMemHandle *out)
{
	CUresult r = CUDA_SUCCESS;
	struct exported *e;

	/* not under the lock, which importers of other memory need, too */
	vs_pool_lend(span->base);
	pthread_mutex_lock(&lock);
	e = find(span->id);
	if (!e)
		r = start() ? make(span, &e) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS)
		*out = e->handle;
	pthread_mutex_unlock(&lock);
	return r;
}

bool vs_ipc_is_own_key(const unsigned char key[16])
{
	return atomic_load(&has_key) &&
	       memcmp(key, own_key, sizeof(own_key)) == 0;
}

void vs_ipc_export_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	exports = NULL;
	atomic_store(&has_key, false);
	close_slot(&listener);
	for (int i = 0; i < MAX_CLIENTS; i++)
		close_slot(&clients[i]);
	for (int i = 0; i < VS_IPC_BATCH; i++) {
		if (in_flight[i] >= 0)
			vs_sys_close(in_flight[i]);
		in_flight[i] = -1;
	}
	memset(own_key, 0, sizeof(own_key));
}
