/* SPDX-License-Identifier: MIT
 *
 * victim_forks [N [unseen]]: children are born while other threads are anywhere
 * inside the allocator, or looking functions up: none of them may hang,
 * whatever it does, and the parent goes on. "unseen": also those of which the
 * driver's handler of forks does not hear, or not yet, when they allocate; a
 * real driver waits there for its own locks. Prints nothing that depends on
 * time.
 */
#define CUDA_ENABLE_DEPRECATED /* attaches, to cuda.h */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim_link.h"

enum { N_THREADS = 3, PATIENCE_S = 30 };
enum { N_SEEN = 9, EARLY = 9, RAW, N_WAYS };

static CUcontext ctx;
static CUdeviceptr kept;
static atomic_bool is_done;

static void *work(void *arg)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t random = (uintptr_t)arg;
	CUdeviceptr p[16] = {0};
	CUstream stream;

	TRY(cuCtxSetCurrent(ctx));
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0; !is_done; i++) {
		unsigned k = i % 16;

		if (p[k])
			victim_free(p[k]);
		p[k] = victim_alloc(victim_size(&random, 23));
		TRY(cuMemsetD8Async(p[k], 1, 1, stream));
		if (i % 64 == 0) {
			TRY(cuStreamBeginCapture(
				stream, CU_STREAM_CAPTURE_MODE_RELAXED));
			victim_end_capture(stream);
		}
	}
	for (int k = 0; k < 16; k++) {
		if (p[k])
			victim_free(p[k]);
	}
	return NULL;
}

static CUcontext own; /* of the thread below; a primary one is not attached */

static void *attach(void *unused)
{
	CUcontext same;

	TRY(cuCtxSetCurrent(own));
	while (!is_done) {
		TRY(cuCtxAttach(&same, 0));
		TRY(cuCtxDetach(same));
	}
	TRY(cuCtxDestroy(own));
	return unused;
}

static void *driver;

static void look(void)
{
	CHECK(dlsym(driver, "cuCtxGetCurrent"));
}

static bool is_early;		 /* the next child's first handler allocates */
static CUresult answer_to_early; /* what it was told */

static void allocate(void)
{
	CUdeviceptr p;

	if (is_early)
		answer_to_early = cuMemAlloc(&p, 4096);
}

static void note_handlers(void)
{
	pthread_atfork(look, look, allocate);
}

/* Before any library's, so that a preload's handlers run around these. */
__attribute__((section(".preinit_array"),
	       used)) static void (*const first)(void) = note_handlers;

static void *look_up(void *unused)
{
	while (!is_done)
		look();
	return unused;
}

/* No more than this: another thread may have had any lock. */
static void raw_child(void)
{
	CUdeviceptr p;

	alarm(PATIENCE_S);
	_exit(cuMemAlloc(&p, 4096) == CUDA_SUCCESS);
}

/* The life of one child; its exit status is 0 when all went as it must. */
static void child(int way)
{
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUdeviceptr p = 0;
	char *text = malloc(300);
	bool is_good = text && getenv("PATH");

	alarm(PATIENCE_S);
	free(text);
	if (way % 2)
		is_good = is_good && cuCtxDetach(own) != CUDA_SUCCESS;
	switch (way) {
	case 0:
		exit(!is_good);
	case 1:
		is_good = is_good && cuInit(0) != CUDA_SUCCESS;
		_exit(!is_good);
	case 2:
		is_good = is_good && cuMemAlloc(&p, 4096) != CUDA_SUCCESS &&
			  cuMemFree(kept) != CUDA_SUCCESS;
		exit(!is_good);
	case 3:
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	case 4:
		/* nobody has set a handler */
		raise(getpid() % 2 ? SIGUSR1 : SIGUSR2);
		_exit(1);
	case 5:
		*(void **)&alloc = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
		is_good = is_good && alloc && alloc(&p, 9 * MiB);
		exit(!is_good);
	case 6:
		quick_exit(!is_good);
	case 7:
		is_good = is_good && dlopen("libm.so.6", RTLD_NOW);
		exit(!is_good);
	case EARLY:
		is_good = is_good && answer_to_early != CUDA_SUCCESS;
		exit(!is_good);
	default:
		is_good = is_good && cuStreamSynchronize(NULL);
		if (fork() == 0)
			exit(0);
		wait(NULL);
		exit(!is_good);
	}
}

static int n_bad[N_WAYS];

static bool is_killed(int status)
{
	return WIFSIGNALED(status) &&
	       (WTERMSIG(status) == SIGUSR1 || WTERMSIG(status) == SIGUSR2);
}

/* Behind the C library's back no handler is called. */
static pid_t fork_in_way(int way)
{
	is_early = way == EARLY;
	return way == RAW ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
			  : fork();
}

static void one_child(int way)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork_in_way(way);
	CHECK(pid >= 0);
	if (pid == 0 && way == RAW)
		raw_child();
	if (pid == 0)
		child(way);
	CHECK(waitpid(pid, &status, 0) == pid);
	if (way == 4 ? !is_killed(status) : status != 0)
		n_bad[way]++;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1000;
	int n_ways = argc > 2 ? N_WAYS : N_SEEN;
	pthread_t threads[N_THREADS], looker, attacher;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver);
	ctx = victim_start(0);
	TRY(cuCtxCreate_v2(&own, 0, 0));
	TRY(cuCtxSetCurrent(ctx));
	kept = victim_alloc(3 * MiB);
	TRY(cuMemsetD8(kept, 5, 3 * MiB));
	for (uintptr_t i = 0; i < N_THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	CHECK(pthread_create(&looker, NULL, look_up, NULL) == 0);
	CHECK(pthread_create(&attacher, NULL, attach, NULL) == 0);
	for (int i = 0; i < n; i++)
		one_child(i % n_ways);
	is_done = true;
	for (int i = 0; i < N_THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(pthread_join(looker, NULL) == 0);
	CHECK(pthread_join(attacher, NULL) == 0);
	for (int i = 0; i < n_ways; i++)
		printf("children of kind %d: %d bad\n", i, n_bad[i]);
	printf("the parent's block: %d\n", victim_is_filled(kept, 3 * MiB, 5));
	victim_free(kept);
	return 0;
}
