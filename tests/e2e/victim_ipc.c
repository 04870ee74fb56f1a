/* SPDX-License-Identifier: MIT
 *
 * victim_ipc [looked]: hands memory to a second process by legacy IPC handles;
 * the second process checks, changes and closes it.
 *
 * looked: the first handle is had while another thread looks at the loader's
 * objects, whose lock that holds, and waits for the handle.
 */
#include <link.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim_link.h"

struct message {
	CUipcMemHandle handle;
	size_t size;
	int byte;
};

static void put(int fd, const void *data, size_t size)
{
	CHECK(write(fd, data, size) == (ssize_t)size);
}

static bool get(int fd, void *data, size_t size)
{
	size_t n = 0;
	ssize_t got;

	while (n < size) {
		got = read(fd, (char *)data + n, size - n);
		if (got <= 0)
			return false;
		n += (size_t)got;
	}
	return true;
}

struct late {
	CUcontext ctx;
	CUdeviceptr p;
	pthread_barrier_t turn;
};

static void *close_late(void *argument)
{
	struct late *l = argument;

	TRY(cuCtxSetCurrent(l->ctx));
	pthread_barrier_wait(&l->turn);
	pthread_barrier_wait(&l->turn);
	CHECK(cuIpcCloseMemHandle(l->p) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
	return NULL;
}

/* A thread whose context has ended closes nothing of another's. */
static void ended_one_closes_nothing(CUdeviceptr p)
{
	struct late l = {.p = p};
	static void *is_simulated;
	pthread_t thread;

	/* what a driver says is not known */
	if (!sim_client_find(&is_simulated, "sim_violations"))
		return;
	TRY(cuCtxCreate_v2(&l.ctx, 0, 0));
	CHECK(!pthread_barrier_init(&l.turn, NULL, 2));
	CHECK(!pthread_create(&thread, NULL, close_late, &l));
	pthread_barrier_wait(&l.turn);
	TRY(cuCtxDestroy(l.ctx));
	pthread_barrier_wait(&l.turn);
	pthread_join(thread, NULL);
}

static _Atomic bool is_over;

static void CUDA_CB end_late(void *unused)
{
	(void)unused;
	usleep(20000);
	is_over = true;
}

/*
 * What was set for opened memory stays, whatever flags the program gives the
 * context and however much else it sets it for.
 */
static void stays_synchronous(CUdeviceptr p, size_t size)
{
	const CUpointer_attribute sync = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
	CUdeviceptr own = victim_alloc(size);
	unsigned yes = 1;

	TRY(cuPointerSetAttribute(&yes, sync, p));
	for (int i = 0; i < 200; i++) {
		CUdeviceptr other = victim_alloc(100);

		TRY(cuPointerSetAttribute(&yes, sync, other));
		victim_free(other);
	}
	TRY(cuCtxSetFlags(CU_CTX_SCHED_AUTO));
	is_over = false;
	TRY(cuLaunchHostFunc(NULL, end_late, NULL));
	TRY(cuMemcpyDtoD(own, p, size));
	CHECK(is_over);
	victim_free(own);
}

/* Reads from stdin, answers on stdout's twin. */
static int second(int in, int out)
{
	struct message m;
	CUdeviceptr p;
	int answer;

	victim_start(0);
	/* cuda.h names no call a cancellation point */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	while (get(in, &m, sizeof(m))) {
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
		TRY(cuIpcOpenMemHandle(&p, m.handle,
				       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
		ended_one_closes_nothing(p);
		answer = victim_is_filled(p, m.size, m.byte);
		stays_synchronous(p, m.size);
		TRY(cuMemsetD8(p, (unsigned char)(m.byte + 1), m.size));
		TRY(cuCtxSynchronize());
		TRY(cuIpcCloseMemHandle(p));
		put(out, &answer, sizeof(answer));
	}
	return 0;
}

static _Atomic bool is_looking, is_had;

static int wait_there(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)info;
	(void)size;
	(void)unused;
	is_looking = true;
	for (int i = 0; i < 2000 && !is_had; i++)
		usleep(1000);
	puts(is_had ? "had" : "late");
	return 1;
}

static void *look(void *unused)
{
	dl_iterate_phdr(wait_there, NULL);
	return unused;
}

static int have_while_looked(void)
{
	CUipcMemHandle handle;
	pthread_t thread;
	CUdeviceptr p;

	victim_start(0);
	p = victim_alloc(MiB);
	CHECK(!pthread_create(&thread, NULL, look, NULL));
	while (!is_looking)
		usleep(1000);
	TRY(cuIpcGetMemHandle(&handle, p));
	is_had = true;
	CHECK(!pthread_join(thread, NULL));
	victim_free(p);
	return 0;
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {100, 70 * KiB, 2 * MiB, 33 * MiB};
	int to, from, status, answer;
	CUipcMemHandle again;
	struct message m;
	CUdeviceptr p, opened;
	pid_t pid;

	if (argc == 4)
		return second(atoi(argv[2]), atoi(argv[3]));
	if (argc == 2)
		return have_while_looked();
	pid = victim_start_second(argv[0], &to, &from);
	victim_start(0);
	for (int i = 0; i < 12; i++) {
		memset(&m, 0, sizeof(m));
		m.size = sizes[i % 4];
		m.byte = i + 1;
		p = victim_alloc(m.size);
		TRY(cuMemsetD8(p, (unsigned char)m.byte, m.size));
		TRY(cuCtxSynchronize());
		TRY(cuIpcGetMemHandle(&m.handle, p));
		TRY(cuIpcGetMemHandle(&again, p + m.size / 2));
		printf("%zu bytes: same handle %d,", m.size,
		       memcmp(&again, &m.handle, sizeof(again)) == 0);
		if (i == 0)
			printf(" open here: %s,",
			       victim_name(cuIpcOpenMemHandle(&opened, m.handle,
							      1)));
		put(to, &m, sizeof(m));
		CHECK(get(from, &answer, sizeof(answer)));
		printf(" there %d, here %d\n", answer,
		       victim_is_filled(p, m.size, m.byte + 1));
		victim_free(p);
	}
	close(to);
	CHECK(waitpid(pid, &status, 0) == pid);
	printf("second process: %d\n", status);
	return 0;
}
