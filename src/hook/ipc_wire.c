/* SPDX-License-Identifier: MIT */
#include "hook/ipc_wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/process.h"
#include "base/sys.h"
#include "driver/vmm.h"

/* "vmmshim", and in the last byte the version of handle and messages together.
 */
#define MAGIC UINT64_C(0x026d6968736d6d76)
#define BACKLOG 128
#define NAME_BYTES 8 /* of the key */

static uint64_t hash(const void *data, size_t size)
{
	const unsigned char *p = data;
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	while (size--)
		h = (h ^ *p++) * UINT64_C(0x100000001b3);
	return h;
}

static uint32_t checksum(const struct vs_ipc_handle *h)
{
	uint64_t sum = hash(h, offsetof(struct vs_ipc_handle, checksum));

	return (uint32_t)(sum ^ sum >> 32);
}

void vs_ipc_seal(struct vs_ipc_handle *h, CUipcMemHandle *out)
{
	h->magic = MAGIC;
	h->checksum = checksum(h);
	memcpy(out, h, sizeof(*h));
}

bool vs_ipc_unseal(const CUipcMemHandle *in, struct vs_ipc_handle *h)
{
	memcpy(h, in, sizeof(*h));
	return h->magic == MAGIC && h->checksum == checksum(h);
}

bool vs_ipc_is_of_another(const CUipcMemHandle *in)
{
	uint64_t magic;

	memcpy(&magic, in, sizeof(magic));
	return magic != MAGIC && (magic ^ MAGIC) << 8 == 0;
}

bool vs_ipc_key(unsigned char key[16])
{
	return vs_sys_getrandom(key, 16, 0) == 16;
}

/* An abstract name: a NUL, then text without one. Returns the length. */
static socklen_t address_of(const unsigned char key[16], struct sockaddr_un *a)
{
	static const char prefix[] = "vmmshim-ipc-", hex[] = "0123456789abcdef";
	char *to = a->sun_path + 1;

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	memcpy(to, prefix, sizeof(prefix) - 1);
	to += sizeof(prefix) - 1;
	for (int i = 0; i < NAME_BYTES; i++) {
		*to++ = hex[key[i] >> 4];
		*to++ = hex[key[i] & 15];
	}
	return (socklen_t)(to - (char *)a);
}

static int new_socket(void)
{
	return vs_fd_clear(vs_sys_socket(
		AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* Closes and keeps errno. */
static int give_up(int fd)
{
	int error = errno;

	vs_sys_close(fd);
	errno = error;
	return -1;
}

int vs_ipc_listen(const unsigned char key[16])
{
	struct sockaddr_un address;
	socklen_t length = address_of(key, &address);
	int fd = new_socket();

	if (fd < 0)
		return -1;
	if (vs_sys_bind(fd, (struct sockaddr *)&address, length) != 0 ||
	    vs_sys_listen(fd, BACKLOG) != 0)
		return give_up(fd);
	return fd;
}

int vs_ipc_connect(const unsigned char key[16], uint64_t deadline)
{
	struct sockaddr_un address;
	socklen_t length = address_of(key, &address);
	int fd = new_socket();

	if (fd < 0)
		return -1;
	while (vs_sys_connect(fd, (struct sockaddr *)&address, length) != 0) {
		/* EAGAIN: so many are waiting already */
		if ((errno != EAGAIN && errno != EINTR) ||
		    vs_vmm_clock() >= deadline)
			return give_up(fd);
		vs_cancel_free_sleep(VS_MS);
	}
	return fd;
}

bool vs_ipc_is_same_user(int socket)
{
	struct ucred other;
	socklen_t size = sizeof(other);

	return vs_sys_getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other,
				 &size) == 0 &&
	       other.uid == vs_sys_geteuid();
}

/* PID 0: it is in a namespace that this process does not see. */
bool vs_ipc_is_alive(int socket)
{
	struct ucred other;
	socklen_t size = sizeof(other);

	if (vs_sys_getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) !=
	    0)
		return false;
	return other.pid == 0 || !vs_process_is_gone(other.pid);
}

/* False when the time is up; true: try again. */
static bool wait_for(int socket, short what, uint64_t deadline)
{
	struct pollfd p = {.fd = socket, .events = what};
	uint64_t now = vs_vmm_clock();

	if (now >= deadline) {
		errno = ETIMEDOUT;
		return false;
	}
	return vs_sys_poll(&p, 1,
			   (int)((deadline - now + VS_MS - 1) / VS_MS)) >= 0 ||
	       errno == EINTR;
}

union control {
	struct cmsghdr header; /* for its alignment */
	char bytes[CMSG_SPACE(VS_IPC_BATCH * sizeof(int))];
};

bool vs_ipc_send(int socket, const void *message, size_t size, const int *fds,
		 unsigned n_fds, uint64_t deadline)
{
	struct iovec part = {.iov_base = (void *)(uintptr_t)message,
			     .iov_len = size};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
	union control control;
	struct cmsghdr *c;

	memset(&control, 0, sizeof(control));
	if (n_fds > 0) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
	}
	while (vs_sys_sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN || !wait_for(socket, POLLOUT, deadline))
			return false;
	}
	return true;
}

static void take_fds(struct msghdr *m, int *fds, unsigned max_fds)
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n_here;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n_here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n_here; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (n < max_fds)
				fds[n++] = fd;
			else
				vs_sys_close(fd);
		}
	}
}

ssize_t vs_ipc_receive(int socket, void *message, size_t size, int *fds,
		       unsigned max_fds, uint64_t deadline)
{
	struct iovec part = {.iov_base = message, .iov_len = size};
	union control control;
	struct msghdr m;
	ssize_t got;

	for (unsigned i = 0; i < max_fds; i++)
		fds[i] = -1;
	for (;;) {
		m = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
		if (max_fds > 0) {
			m.msg_control = &control;
			m.msg_controllen = sizeof(control);
		}
		got = vs_sys_recvmsg(socket, &m,
				     MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
		if (got >= 0)
			break;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN || !wait_for(socket, POLLIN, deadline))
			return -1;
	}
	if (max_fds > 0)
		take_fds(&m, fds, max_fds);
	return got;
}
