/* SPDX-License-Identifier: MIT
 *
 * roads_life: the roads of programs that reach the driver from threads, in
 * children, amid signals, or close what they opened.
 */
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "roads.h"
#include "roads_life.h"

#define N_RACERS 16

static pthread_barrier_t start;
static void *found[N_RACERS];

static void *race(void *arg)
{
	int i = *(int *)arg;
	void *handle = roads_open(DRIVER, RTLD_NOW);
	__typeof__(cuGetProcAddress_v2) *ask;

	pthread_barrier_wait(&start);
	if (i % 2) {
		found[i] = dlsym(handle, "cuMemAlloc_v2");
	} else {
		*(void **)&ask = dlsym(handle, "cuGetProcAddress_v2");
		ask("cuMemAlloc", &found[i], 3020, 0, NULL);
	}
	return NULL;
}

static void *look_up(void *libcuda)
{
	return dlsym(libcuda, "cuInit");
}

/* The first look-up is made on the smallest stack that a thread can have. */
void road_small_stack(const char *arg)
{
	void *libcuda = roads_open(DRIVER, RTLD_NOW), *function;
	pthread_attr_t attributes;
	pthread_t thread;

	(void)arg;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN);
	pthread_create(&thread, &attributes, look_up, libcuda);
	pthread_join(thread, &function);
	printf("found: %s\n", function ? "yes" : "no");
	roads_serve_from(libcuda);
}

void road_threads(const char *arg)
{
	pthread_t threads[N_RACERS];
	int numbers[N_RACERS];
	bool is_same = true;

	(void)arg;
	pthread_barrier_init(&start, NULL, N_RACERS);
	for (int i = 0; i < N_RACERS; i++) {
		numbers[i] = i;
		pthread_create(&threads[i], NULL, race, &numbers[i]);
	}
	for (int i = 0; i < N_RACERS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < N_RACERS; i++)
		is_same = is_same &&
			  !strcmp(roads_home(found[i]), roads_home(found[0]));
	printf("all the same: %s\n", is_same ? "yes" : "no");
	roads_serve_from(roads_open(DRIVER, RTLD_NOW));
}

/* The program closes the driver and opens it again. */
void road_close(const char *arg)
{
	(void)arg;
	for (int i = 0; i < 3; i++) {
		void *handle = roads_open(DRIVER, RTLD_NOW);

		roads_serve_from(handle);
		dlclose(handle);
	}
}

/* A plugin that brings the shim along is closed by a thread that ends then. */
static void *serve_and_close(void *library)
{
	void *driver = roads_open(DRIVER, RTLD_NOW);
	void *handle = roads_open(library, RTLD_NOW | RTLD_LOCAL);

	roads_serve_from_two(handle, driver);
	dlclose(handle);
	return NULL;
}

void road_brought(const char *library)
{
	pthread_t thread;

	pthread_create(&thread, NULL, serve_and_close, (void *)library);
	pthread_join(thread, NULL);
}

static void in_child(void (*function)(void))
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		function();
		fflush(stdout);
		_Exit(0);
	}
	waitpid(child, &status, 0);
	if (status)
		printf("the child ended with %x\n", status);
}

static void serve_in_child(void)
{
	roads_serve_from(roads_open(DRIVER, RTLD_NOW));
}

static void refuse_in_child(void)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	__typeof__(cuInit) *init;
	__typeof__(cuMemAlloc_v2) *alloc;
	CUdeviceptr p;

	*(void **)&init = dlsym(handle, "cuInit");
	*(void **)&alloc = dlsym(handle, "cuMemAlloc_v2");
	printf("in the child: %d, %d\n", (int)init(0), (int)alloc(&p, 1000));
}

void road_fork(const char *arg)
{
	(void)arg;
	dlsym(roads_open(DRIVER, RTLD_NOW), "cuInit");
	in_child(serve_in_child);
	serve_in_child();
	in_child(refuse_in_child);
	serve_in_child();
}

static __typeof__(cuMemAlloc_v2) *early_alloc;

static void alloc_early(void)
{
	CUdeviceptr p = 0;
	CUresult result = early_alloc(&p, 1000);

	printf("in a handler: %d, %d\n", (int)result, p != 0);
}

/* A handler for children that was set before CUDA was used. */
void road_fork_early(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);

	(void)arg;
	pthread_atfork(NULL, NULL, alloc_early);
	roads_serve_from(handle);
	*(void **)&early_alloc = dlsym(handle, "cuMemAlloc_v2");
	in_child(refuse_in_child);
	roads_serve_from(handle);
}

/*
 * A profiler's handler waits for that of another thread, which looks at the
 * loader's objects: the thread that was interrupted must not keep it from that.
 */
static atomic_int n_asked, n_looked;
static volatile sig_atomic_t n_late;

static int look_at_none(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)info;
	(void)size;
	(void)unused;
	return 0;
}

static void *look_when_asked(void *unused)
{
	for (;;) {
		if (n_looked == n_asked) {
			usleep(20);
			continue;
		}
		dl_iterate_phdr(look_at_none, NULL);
		n_looked++;
	}
	return unused;
}

static void wait_for_look(int number)
{
	int want = ++n_asked;

	(void)number;
	for (int i = 0; n_looked < want && !n_late && i < 3000; i++)
		usleep(1000);
	if (n_looked < want)
		n_late = 1;
}

void road_profiled(const char *arg)
{
	const struct itimerval off = {{0, 0}, {0, 0}};
	const struct itimerval each_ms = {{0, 1000}, {0, 1000}};
	void *handle = roads_open(DRIVER, RTLD_NOW);
	sigset_t prof;
	pthread_t thread;

	(void)arg;
	roads_serve_from(handle);
	/* the process's timer is to interrupt this thread alone */
	sigemptyset(&prof);
	sigaddset(&prof, SIGPROF);
	pthread_sigmask(SIG_BLOCK, &prof, NULL);
	pthread_create(&thread, NULL, look_when_asked, NULL);
	pthread_sigmask(SIG_UNBLOCK, &prof, NULL);
	signal(SIGPROF, wait_for_look);
	setitimer(ITIMER_PROF, &each_ms, NULL);
	while (n_asked < 200 && n_late == 0)
		dlsym(handle, "cuMemAlloc_v2");
	setitimer(ITIMER_PROF, &off, NULL);
	printf("late: %d\n", (int)n_late);
}
