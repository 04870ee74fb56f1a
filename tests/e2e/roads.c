/* SPDX-License-Identifier: MIT
 *
 * roads ROAD [ARG]: reaches the driver by dlopen and one of the roads below.
 */
#include <dirent.h>
#include <signal.h>

#include "roads.h"
#include "roads_life.h"

static void road_dlsym(const char *arg)
{
	(void)arg;
	roads_serve_from(roads_open(DRIVER, RTLD_NOW | RTLD_LOCAL));
}

/* A library without versions answers to every version. */
static void road_dlvsym(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	struct roads d;

	(void)arg;
#define X(symbol, name, since)                                                 \
	*(void **)&d.symbol = dlvsym(handle, #symbol, "ANY_1.0");
	ROADS_CALLS(X)
#undef X
	if (d.cuInit)
		roads_serve(&d);
	else
		printf("dlvsym: nothing\n");
}

static void show_procaddr(__typeof__(cuGetProcAddress_v2) *ask,
			  const char *name, int version, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status = 77;
	void *function = NULL;
	CUresult result = ask(name, &function, version, flags, &status);

	printf("%s at %d, flags %d: result %d, status %d, %s\n",
	       name ? name : "NULL", version, (int)flags, (int)result,
	       (int)status, function ? "a function" : "none");
}

static void road_procaddr(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	CUdriverProcAddressQueryResult status;
	__typeof__(cuGetProcAddress_v2) *ask;
	struct roads d;

	(void)arg;
	*(void **)&ask = dlsym(handle, "cuGetProcAddress_v2");
#define X(symbol, name, since)                                                 \
	roads_try(name, ask(name, (void **)&d.symbol, since, 0, &status));
	ROADS_CALLS(X)
#undef X
	show_procaddr(ask, "", 0, 0);
	show_procaddr(ask, "cuMemAlloc", 3020, 0);
	show_procaddr(ask, "cuMemAlloc", 2000, 0);
	show_procaddr(ask, "cuNoSuchThing", 12000, 0);
	show_procaddr(ask, "cuMemFreeAsync", 11020, 2);
	printf("no status: %d\n",
	       ask("cuInit", (void **)&d.cuInit, 2000, 0, NULL));
	roads_serve(&d);
}

static void road_procaddr_v1(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	__typeof__(cuGetProcAddress) *ask;
	void *function;
	struct roads d;

	(void)arg;
	*(void **)&ask = dlsym(handle, "cuGetProcAddress");
#define X(symbol, name, since)                                                 \
	roads_try(name, ask(name, (void **)&d.symbol, since, 0));
	ROADS_CALLS(X)
#undef X
	printf("nothing: %d\n", ask("cuNoSuchThing", &function, 12000, 0));
	roads_serve(&d);
}

/* As cudart: cuGetProcAddress finds itself, then the per-thread functions. */
static void road_procaddr_ptsz(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	__typeof__(cuGetProcAddress_v2) *first, *ask;
	__typeof__(cuMemFreeAsync_ptsz) *free_async;
	__typeof__(cuStreamSynchronize_ptsz) *sync;
	struct roads d;
	CUdeviceptr p;
	long before;

	(void)arg;
	*(void **)&first = dlsym(handle, "cuGetProcAddress_v2");
	roads_try("itself",
		  first("cuGetProcAddress", (void **)&ask, 12000, 0, NULL));
#define X(symbol, name, since)                                                 \
	roads_try(name, ask(name, (void **)&d.symbol, since, 2, NULL));
	ROADS_CALLS(X)
#undef X
	roads_serve(&d);
	roads_try("cuMemFreeAsync",
		  ask("cuMemFreeAsync", (void **)&free_async, 11020, 2, NULL));
	roads_try("cuStreamSynchronize",
		  ask("cuStreamSynchronize", (void **)&sync, 7000, 2, NULL));
	before = pool_blocks();
	roads_try("cuMemAlloc", d.cuMemAlloc_v2(&p, 5 << 20));
	roads_try("cuMemFreeAsync", free_async(p, NULL));
	roads_try("cuStreamSynchronize", sync(NULL));
	printf("freed %s\n", pool_blocks() == before ? "yes" : "no");
}

static void open_if_told(const char *arg)
{
	if (!strcmp(arg, "global"))
		roads_open(DRIVER, RTLD_NOW | RTLD_GLOBAL);
	if (!strcmp(arg, "local"))
		roads_open(DRIVER, RTLD_NOW | RTLD_LOCAL);
}

static void road_default(const char *arg)
{
	open_if_told(arg);
	roads_serve_from(RTLD_DEFAULT);
}

static void road_program(const char *arg)
{
	void *program = dlopen(NULL, RTLD_NOW);

	open_if_told(arg);
	roads_serve_from(program);
}

/* A program that was built with another version of the header. */
static void road_versions(const char *arg)
{
	struct {
		struct vmmshim_stats known;
		uint64_t later;
	} stats;
	int (*ask)(int, struct vmmshim_stats *);

	(void)arg;
	roads_serve_from(roads_open(DRIVER, RTLD_NOW));
	*(void **)&ask = dlsym(RTLD_DEFAULT, "vmmshim_stats");
	if (!ask)
		return;
	for (int device = 0; device < 2; device++) {
		memset(&stats, 0xee, sizeof(stats));
		stats.known.struct_size = sizeof(stats);
		printf("device %d: %d", device, ask(device, &stats.known));
		printf(", later field %llu, size kept %d\n",
		       (unsigned long long)stats.later,
		       stats.known.struct_size == sizeof(stats));
	}
	stats.known.struct_size = sizeof(stats.known) - 8;
	printf("too small: %d\n", ask(0, &stats.known));
}

/* Nothing of the shim may be found where there is no driver. */
static void road_nothing(const char *arg)
{
	void *handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};

	open_if_told(arg);
	for (int i = 0; i < 3; i++) {
		void *function = dlsym(handles[i], "cuMemAlloc_v2");
		const char *error = dlerror();

		printf("%s, %s\n", function ? "found" : "not found",
		       error && strstr(error, "undefined symbol: cuMemAlloc_v2")
			       ? "an error for it"
			       : "no error");
		function = dlvsym(handles[i], "cuInit", "ANY_1.0");
		error = dlerror();
		printf("%s, %s\n", function ? "found" : "not found",
		       error && strstr(error, "cuInit") ? "an error for it"
							: "no error");
	}
}

/* ARG: a library that is linked to the driver. */
static void road_bound(const char *arg)
{
	void (*serve)(void);

	*(void **)&serve = dlsym(roads_open(arg, RTLD_NOW | RTLD_LOCAL),
				 "roads_lib_serve");
	serve();
}

static void road_own_driver(const char *arg)
{
	void (*serve)(void);

	*(void **)&serve = dlsym(roads_open(arg, RTLD_NOW | RTLD_LOCAL),
				 "roads_local_serve");
	serve();
}

static void road_deepbind(const char *arg)
{
	void (*serve)(void);

	*(void **)&serve =
		dlsym(roads_open(arg, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND),
		      "roads_lib_serve");
	serve();
}

static void road_namespace(const char *arg)
{
	void *handle = dlmopen(LM_ID_NEWLM, DRIVER, RTLD_NOW | RTLD_LOCAL);

	(void)arg;
	if (!handle)
		printf("%s\n", dlerror());
	else
		printf("from %s\n", roads_home(dlsym(handle, "cuMemAlloc_v2")));
}

/* ARG: another copy of the driver. It is seen second, or (copy) first. */
static void road_second(const char *arg)
{
	void *copy;

	roads_serve_from(roads_open(DRIVER, RTLD_NOW));
	copy = roads_open(arg, RTLD_NOW);
	printf("untouched %s\n",
	       roads_is_in(dlsym(copy, "cuMemAlloc_v2"), arg) ? "yes" : "no");
	printf("pool ");
	roads_serve_from(copy);
}

static void road_copy(const char *arg)
{
	roads_serve_from(roads_open(arg, RTLD_NOW));
	/* by its path: by its name the copy would answer */
	roads_serve_from(roads_open(getenv("ROADS_DRIVER"), RTLD_NOW));
}

/* ARG: a library with functions named like the driver's and others'. */
static void road_names(const char *arg)
{
	static const char *const names[] = {
		"cuInit",	"cuMemAlloc_v2",  "cuSomething", "cudnnCreate",
		"cublasCreate", "curl_easy_init", "cu",		 "c",
	};
	void *handle = roads_open(arg, RTLD_NOW);

	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			int (*function)(void);

			*(void **)&function = dlsym(handle, names[i]);
			printf("%s %d\n", names[i], function ? function() : -1);
		}
		printf("empty: %s\n", dlsym(handle, "") ? "found" : "none");
		roads_open(DRIVER, RTLD_NOW);
	}
	roads_serve_from(roads_open(DRIVER, RTLD_NOW));
}

/* A function that the shim has, but not this driver. */
static void road_absent(const char *arg)
{
	static const char name[] = "cuMemAllocPitch_v2";
	void *handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};

	(void)arg;
	roads_open(DRIVER, RTLD_NOW | RTLD_GLOBAL);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 3; i++) {
			void *function = dlsym(handles[i], name);
			const char *error = dlerror();

			printf("%s, %s\n", function ? "found" : "not found",
			       error && strstr(error, name) ? "an error for it"
							    : "no error");
		}
		roads_serve_from(RTLD_DEFAULT);
	}
}

static void show_error(const char *what, void *function)
{
	const char *error = dlerror();

	printf("%s: %s, %s\n", what, function ? "found" : "none",
	       error ? error : "no error");
}

static void road_dlerror(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	void *libc = roads_open("libc.so.6", RTLD_NOW);
	__typeof__(cuGetProcAddress_v2) *ask;
	void *function;

	(void)arg;
	show_error("driver", dlsym(handle, "cuNoSuchThing"));
	show_error("driver", dlsym(handle, "cudaNoSuchThing"));
	show_error("default", dlsym(RTLD_DEFAULT, "cuNoSuchThing"));
	show_error("next", dlsym(RTLD_NEXT, "cuNoSuchThing"));
	show_error("version", dlvsym(handle, "cuNoSuchThing", "V_1"));
	show_error("libc", dlvsym(libc, "malloc", "NO_SUCH_1"));
	show_error("libc", dlvsym(libc, "cuNoSuchThing", "NO_SUCH_1"));
	/* an error waits until it is asked for, or another look-up */
	dlopen("/no/such/file", RTLD_NOW);
	show_error("waiting", NULL);
	dlopen("/no/such/file", RTLD_NOW);
	*(void **)&ask = dlsym(handle, "cuGetProcAddress_v2");
	show_error("gone", (void *)ask);
	dlopen("/no/such/file", RTLD_NOW);
	ask("cuMemAlloc", &function, 3020, 0, NULL);
	show_error("kept", function);
}

static bool is_known(__typeof__(cuMemGetAddressRange_v2) *range, CUdeviceptr p)
{
	CUdeviceptr base;
	size_t size;

	return range(&base, &size, p) == CUDA_SUCCESS && base == p;
}

/*
 * ARG: a library that holds the primary context without being seen. What this
 * program releases is then not the last.
 */
static void road_retain(const char *arg)
{
	void *handle = roads_open(DRIVER, RTLD_NOW);
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuDevicePrimaryCtxRelease_v2) *release;
	__typeof__(cuMemGetAddressRange_v2) *range;
	__typeof__(cuMemAlloc_v2) *alloc;
	__typeof__(cuCtxSetCurrent) *set;
	CUresult (*hold)(bool is_wanted);
	CUdeviceptr p;
	CUcontext ctx;

	roads_serve_from(handle);
	*(void **)&retain = dlsym(handle, "cuDevicePrimaryCtxRetain");
	*(void **)&release = dlsym(handle, "cuDevicePrimaryCtxRelease_v2");
	*(void **)&range = dlsym(handle, "cuMemGetAddressRange_v2");
	*(void **)&alloc = dlsym(handle, "cuMemAlloc_v2");
	*(void **)&set = dlsym(handle, "cuCtxSetCurrent");
	*(void **)&hold =
		dlsym(roads_open(arg, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND),
		      "roads_lib_hold");
	roads_try("alloc", alloc(&p, 5 << 20));
	/* the last release takes the memory with it */
	roads_try("release", release(0));
	printf("released: %d\n", is_known(range, p));
	/* held by the library first, then used by the program */
	roads_try("hold", hold(true));
	roads_try("retain", retain(&ctx, 0));
	roads_try("set", set(ctx));
	printf("again: %d\n", is_known(range, p));
	roads_try("alloc", alloc(&p, 5 << 20));
	roads_try("release", release(0));
	printf("held: %d\n", is_known(range, p));
	roads_try("retain", retain(&ctx, 0));
	roads_try("drop", hold(false));
	printf("dropped: %d\n", is_known(range, p));
	roads_try("release", release(0));
	printf("released: %d\n", is_known(range, p));
	roads_try("retain", retain(&ctx, 0));
	roads_try("set", set(ctx));
	printf("again: %d\n", is_known(range, p));
	printf("blocks left: %d\n", pool_blocks() > 0);
}

/* A program without CUDA that looks up names. */
static void road_quiet(const char *arg)
{
	static const int signals[] = {SIGUSR1, SIGUSR2};
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	(void)arg;
	printf("%d\n", dlsym(RTLD_DEFAULT, "malloc") != NULL);
	printf("%d\n", dlsym(RTLD_NEXT, "malloc") != NULL);
	printf("%d\n", dlsym(RTLD_DEFAULT, "cuNoSuchThing") != NULL);
	while (tasks && (entry = readdir(tasks)))
		n += entry->d_name[0] != '.';
	printf("%d threads\n", n);
	for (int i = 0; i < 2; i++) {
		struct sigaction old;

		sigaction(signals[i], NULL, &old);
		printf("signal %d: %s\n", signals[i],
		       old.sa_handler == SIG_DFL ? "default" : "handler");
	}
}

/* ARG: a library that adds up a chain of RTLD_NEXT. */
static void road_chain(const char *arg)
{
	int (*chain)(void);

	(void)arg;
	*(void **)&chain = dlsym(RTLD_DEFAULT, "roads_chain");
	printf("chain %d\n", chain ? chain() : 0);
}

static const struct {
	const char *name;
	void (*go)(const char *arg);
} table[] = {
	{"dlsym", road_dlsym},
	{"dlvsym", road_dlvsym},
	{"procaddr", road_procaddr},
	{"procaddr_v1", road_procaddr_v1},
	{"procaddr_ptsz", road_procaddr_ptsz},
	{"versions", road_versions},
	{"default", road_default},
	{"program", road_program},
	{"nothing", road_nothing},
	{"bound", road_bound},
	{"own_driver", road_own_driver},
	{"deepbind", road_deepbind},
	{"namespace", road_namespace},
	{"second", road_second},
	{"copy", road_copy},
	{"names", road_names},
	{"absent", road_absent},
	{"dlerror", road_dlerror},
	{"small_stack", road_small_stack},
	{"threads", road_threads},
	{"close", road_close},
	{"brought", road_brought},
	{"fork", road_fork},
	{"fork_early", road_fork_early},
	{"profiled", road_profiled},
	{"retain", road_retain},
	{"quiet", road_quiet},
	{"chain", road_chain},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (argc < 2 || strcmp(argv[1], table[i].name))
			continue;
		table[i].go(argc > 2 ? argv[2] : "");
		return 0;
	}
	fprintf(stderr, "roads: no such road\n");
	return 99;
}
