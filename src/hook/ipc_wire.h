/* SPDX-License-Identifier: MIT
 *
 * ipc_wire: what two processes under the shim say to each other: the 64 bytes
 * of a handle, which travel by the program's own means, and the messages on the
 * exporter's socket, which bring the memory.
 *
 * The socket is an abstract one, which ends with the process, and is named
 * after half of the exporter's key, a random number: whoever holds a handle can
 * find it. But so can all of the network namespace, among them other containers
 * and sandboxes of the user, by /proc/net/unix. So each request says the whole
 * key, which nobody else can guess. The importer asks for some pieces at a time
 * and the next only when it has imported and closed those, so that either side
 * needs a handful of descriptors however large the memory is, and the exporter
 * keeps nothing in mind between two requests.
 */
#ifndef VS_HOOK_IPC_WIRE_H
#define VS_HOOK_IPC_WIRE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VS_IPC_BATCH 8 /* pieces, thus descriptors, in a reply at most */

/* What fills a CUipcMemHandle; the same each time for one allocation. */
struct vs_ipc_handle {
	uint64_t magic;	       /* and version */
	unsigned char key[16]; /* of the exporting process */
	uint64_t id;	       /* of the allocation there; never used again */
	uint64_t size;	       /* bytes that the program asked for */
	uint64_t offset;       /* of them in the first piece */
	uint64_t device; /* from its UUID: ordinals differ (vs_vmm_device_id) */
	uint32_t pid;	 /* for people: log lines */
	uint32_t checksum; /* of all before */
};

_Static_assert(sizeof(struct vs_ipc_handle) == CU_IPC_HANDLE_SIZE,
	       "a handle fills the driver's");

/* Sets magic and checksum and copies it out. */
void vs_ipc_seal(struct vs_ipc_handle *h, CUipcMemHandle *out);
/* False when it was not made by a shim that speaks this version. */
bool vs_ipc_unseal(const CUipcMemHandle *in, struct vs_ipc_handle *h_out);

/* It was made by a shim, but one that speaks another. */
bool vs_ipc_is_of_another(const CUipcMemHandle *in);

/* A random key; false when the system gives none. */
bool vs_ipc_key(unsigned char key[16]);

struct vs_ipc_request {
	unsigned char key[16]; /* the exporter's */
	uint64_t id;
	uint32_t first, max; /* pieces wanted: [first, first + max) */
};

enum vs_ipc_status {
	VS_IPC_OK,
	VS_IPC_GONE,   /* no such allocation, or freed, or never exported */
	VS_IPC_BUSY,   /* no descriptor to be had now */
	VS_IPC_FAILED, /* the driver's answer is in `result` */
};

struct vs_ipc_reply {
	uint32_t status; /* enum vs_ipc_status */
	uint32_t result; /* CUresult */
	uint32_t n;	 /* pieces in this reply, a descriptor each */
	uint32_t n_all;	 /* pieces of the allocation */
	uint64_t bytes;	 /* of all of them */
	uint64_t size[VS_IPC_BATCH];
};

/* A listening socket for a key, or -1 (errno). */
int vs_ipc_listen(const unsigned char key[16]);
/* A socket connected to it, or -1 (errno; ECONNREFUSED: nobody is there). */
int vs_ipc_connect(const unsigned char key[16], uint64_t deadline);
/* The process at the other end runs as this one's user. */
bool vs_ipc_is_same_user(int socket);
/* It is there, as far as can be told: a child of its may have the socket. */
bool vs_ipc_is_alive(int socket);

/*
 * One message, with descriptors; waits until `deadline` (vs_vmm_clock; 0: not
 * at all). A send gives nothing away: the descriptors stay the caller's.
 */
bool vs_ipc_send(int socket, const void *message, size_t size, const int *fds,
		 unsigned n_fds, uint64_t deadline);
/*
 * Returns the message's size, 0 when the other end is closed, -1 (errno). The
 * descriptors received are in *fds, -1 behind the last.
 */
ssize_t vs_ipc_receive(int socket, void *message, size_t size, int *fds,
		       unsigned max_fds, uint64_t deadline);

#endif
