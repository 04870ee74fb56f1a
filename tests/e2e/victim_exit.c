/* SPDX-License-Identifier: MIT
 *
 * victim_exit: the program ends while threads still allocate and free, with
 * memory live; an exit handler and a destructor free some. How it ends:
 *   return, quick (_exit), thread (exit by a thread that allocates),
 *   quick_exit, abort, signals (whoever handles them, until the very end)
 * gone: the driver has shut down first, and answers so to everything.
 * trim: an exit handler trims while another thread is at that in the driver.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "victim_link.h"

static CUcontext ctx;
static CUdeviceptr kept, late;
static atomic_int n_started;

static void *work(void *arg)
{
	CUdeviceptr p;

	(void)arg;
	if (cuCtxSetCurrent(ctx))
		return NULL;
	n_started++;
	/* errors are expected here once the driver shuts down */
	while (cuMemAlloc(&p, 100 * KiB) == CUDA_SUCCESS) {
		if (cuMemsetD8(p, 1, 100 * KiB) || cuMemFree(p))
			break;
	}
	return NULL;
}

static void on_exit_free(void)
{
	cuMemFree(kept); /* may fail: the driver may be gone */
	printf("exit handler ran\n");
	fflush(stdout);
}

__attribute__((destructor)) static void free_late(void)
{
	CUdeviceptr p;

	if (late)
		cuMemFree(late);
	if (late && cuMemAlloc(&p, 2 * MiB) == CUDA_SUCCESS)
		cuMemFree(p);
}

static void *exit_from_thread(void *arg)
{
	CUdeviceptr p;

	(void)arg;
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuMemAlloc(&p, 5000));
	TRY(cuMemFree(p));
	exit(8);
}

/* Somebody's preload may handle them; by default they would kill. */
static void *send_signals(void *arg)
{
	struct sigaction usr1, usr2;

	(void)arg;
	sigaction(SIGUSR1, NULL, &usr1);
	sigaction(SIGUSR2, NULL, &usr2);
	for (;;) {
		if (usr1.sa_handler != SIG_DFL)
			kill(getpid(), SIGUSR1);
		if (usr2.sa_handler != SIG_DFL)
			kill(getpid(), SIGUSR2);
		usleep(200);
	}
	return NULL;
}

/* Returns where the program ends by returning. */
static void end(const char *how)
{
	pthread_t thread;

	if (strcmp(how, "quick") == 0)
		_exit(7);
	if (strcmp(how, "abort") == 0)
		abort();
	if (strcmp(how, "quick_exit") == 0) {
		CHECK(at_quick_exit(on_exit_free) == 0);
		quick_exit(9);
	}
	if (strcmp(how, "thread") == 0) {
		CHECK(pthread_create(&thread, NULL, exit_from_thread, NULL) ==
		      0);
		pause();
	}
	if (strcmp(how, "signals") == 0) {
		CHECK(pthread_create(&thread, NULL, send_signals, NULL) == 0);
		usleep(20000);
	}
}

static atomic_int n_heard;

static void hear(const char *call)
{
	(void)call;
	n_heard++;
}

/* Once it has said so, each call is one of the driver's, and no other is. */
static void after_the_driver(void)
{
	CUdeviceptr large = victim_alloc(3 * MiB), small = victim_alloc(700);
	CUdeviceptr base = 0, p = 0;
	size_t size = 0, total = 0;
	CUresult r[7];

	sim_client_set_deinitialized(true);
	r[0] = cuMemAlloc(&p, 2 * MiB);
	sim_client_on_call(hear);
	r[1] = cuMemFree(large);
	r[2] = cuMemAlloc(&p, 700);
	r[3] = cuMemFree(small);
	r[4] = cuMemGetAddressRange(&base, &size, large);
	r[5] = cuMemGetInfo(&size, &total);
	r[6] = cuCtxSynchronize();
	sim_client_on_call(NULL);
	printf("the driver is gone:");
	for (int i = 0; i < 7; i++)
		printf(" %d", r[i]);
	printf(", %d calls\n", n_heard);
	CHECK(base == 0 && p == 0 && size == 0 && total == 0);
}

static pthread_t first;
static _Atomic bool is_held;

/* Longer than a preload may wait for a thread of its own. */
static void hold(const char *call)
{
	if (strcmp(call, "cuMemUnmap") == 0 &&
	    !pthread_equal(pthread_self(), first) && !is_held) {
		is_held = true;
		usleep(200000);
	}
}

static void trim_all(void)
{
	uint64_t (*trim)(void);

	*(void **)&trim = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	printf("trimmed %d\n", !trim || (is_held && trim() > 0));
}

static void end_beside_a_trim(void)
{
	CUdeviceptr p[20];

	first = pthread_self();
	for (int i = 0; i < 20; i++)
		p[i] = victim_alloc(32 * MiB);
	sim_client_on_call(hold);
	for (int i = 0; i < 20; i++)
		victim_free(p[i]);
	/* no preload: it trims nothing */
	for (int ms = 0;
	     ms < 5000 && !is_held && dlsym(RTLD_DEFAULT, "vmmshim_trim"); ms++)
		usleep(1000);
	exit(5);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "return";
	pthread_t threads[3];

	if (strcmp(how, "trim") == 0)
		atexit(trim_all);
	ctx = victim_start(0);
	if (strcmp(how, "trim") == 0)
		end_beside_a_trim();
	if (strcmp(how, "gone") == 0) {
		after_the_driver();
		return 0;
	}
	kept = victim_alloc(3 * MiB);
	late = victim_alloc(700);
	atexit(on_exit_free);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
	while (n_started < 3)
		usleep(100);
	usleep(20000);
	printf("ending\n");
	fflush(stdout);
	end(how);
	return 6;
}
