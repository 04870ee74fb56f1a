/* SPDX-License-Identifier: MIT
 *
 * signals_victim STEP...: an ordinary CUDA program, for signals.test and
 * knobs.test to interrupt. The steps are taken in order:
 *   ignore own      SIGUSR1 is ignored, handled by the program
 *   init            CUDA is used for the first time
 *   use             256 MiB are allocated, written, freed
 *   small           1000 small blocks likewise
 *   hold            64 MiB are allocated
 *   adrift          they are freed while no context is current
 *   other           64 MiB are allocated in a context of their own
 *   end             it ends
 *   ready           "ready" is printed
 *   read            waits for a line on standard input
 *   stuck           waits, in the driver, for work that ends with that line
 *   heap            malloc and free for half a second, in two threads
 *   churn           cuMemAlloc and cuMemFree for half a second, in two threads
 *   fork            children get a signal each, from their parent
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "victim_link.h"

#define BIG (64 * MiB)

static CUcontext ctx, other_ctx;
static CUdeviceptr held;

static void on_signal(int number)
{
	(void)number;
	if (write(STDOUT_FILENO, "own handler\n", 12) != 12)
		_exit(9);
}

static void use(int n, size_t size)
{
	CUdeviceptr *p = calloc((size_t)n, sizeof(*p));

	CHECK(p);
	for (int i = 0; i < n; i++) {
		TRY(cuMemAlloc(&p[i], size));
		TRY(cuMemsetD8(p[i], (unsigned char)i, size));
	}
	TRY(cuCtxSynchronize());
	for (int i = 0; i < n; i++)
		TRY(cuMemFree(p[i]));
	free(p);
}

static void adrift(void)
{
	TRY(cuCtxSetCurrent(NULL));
	TRY(cuMemFree(held));
	TRY(cuCtxSetCurrent(ctx));
}

static void other(void)
{
	CUcontext popped;
	CUdevice device;

	TRY(cuCtxGetDevice(&device));
	TRY(cuCtxCreate_v2(&other_ctx, 0, device));
	TRY(cuMemAlloc(&held, BIG));
	TRY(cuCtxPopCurrent(&popped));
}

static void read_line(void)
{
	char c;

	/* no loop around EINTR: the shim's handlers must restart the call */
	do {
		ssize_t n = read(STDIN_FILENO, &c, 1);

		CHECK(n >= 0);
		if (n == 0)
			return;
	} while (c != '\n');
}

static void CUDA_CB host_work(void *unused)
{
	(void)unused;
	read_line();
}

static void stuck(void)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, 0));
	TRY(cuLaunchHostFunc(stream, host_work, NULL));
	printf("ready\n");
	fflush(stdout);
	TRY(cuStreamSynchronize(stream));
	TRY(cuStreamDestroy(stream));
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *heap(void *end)
{
	uint64_t state = 1;

	while (seconds() < *(double *)end)
		for (int i = 0; i < 1000; i++) {
			void *volatile p = malloc(victim_size(&state, 20));

			free(p);
		}
	return NULL;
}

static void *churn(void *end)
{
	uint64_t state = 1;
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(ctx));
	while (seconds() < *(double *)end) {
		TRY(cuMemAlloc(&p, victim_size(&state, 24)));
		TRY(cuMemFree(p));
	}
	return NULL;
}

static void in_two_threads(void *(*work)(void *))
{
	double end = seconds() + 0.5;
	pthread_t other;

	CHECK(pthread_create(&other, NULL, work, &end) == 0);
	work(&end);
	CHECK(pthread_join(other, NULL) == 0);
}

static void fork_a_child(int number)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		sleep(1);
		exit(7);
	}
	CHECK(kill(pid, number) == 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	printf("child: code %d, signal %d\n",
	       WIFEXITED(status) ? WEXITSTATUS(status) : -1,
	       WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void take(const char *step)
{
	if (!strcmp(step, "ignore"))
		signal(SIGUSR1, SIG_IGN);
	else if (!strcmp(step, "own"))
		signal(SIGUSR1, on_signal);
	else if (!strcmp(step, "init"))
		ctx = victim_start(0);
	else if (!strcmp(step, "use"))
		use(4, BIG);
	else if (!strcmp(step, "small"))
		use(1000, 1000);
	else if (!strcmp(step, "hold"))
		TRY(cuMemAlloc(&held, BIG));
	else if (!strcmp(step, "adrift"))
		adrift();
	else if (!strcmp(step, "other"))
		other();
	else if (!strcmp(step, "end"))
		TRY(cuCtxDestroy(other_ctx));
	else if (!strcmp(step, "read"))
		read_line();
	else if (!strcmp(step, "stuck"))
		stuck();
	else if (!strcmp(step, "heap"))
		in_two_threads(heap);
	else if (!strcmp(step, "churn"))
		in_two_threads(churn);
	else if (!strcmp(step, "fork")) {
		fork_a_child(SIGUSR1);
		fork_a_child(SIGUSR2);
		fork_a_child(0);
	} else
		CHECK(!strcmp(step, "ready"));
	printf("%s\n", step);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		take(argv[i]);
	return 0;
}
