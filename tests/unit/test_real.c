/* SPDX-License-Identifier: MIT
 *
 * real: binding to a libcuda and to nothing else; loader: looking names up in
 * the objects in memory. The libcuda is the simulated driver.
 */
#include "driver/real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "child.h"
#include "driver/loader.h"

static struct child c;

static const char *in_build(const char *path)
{
	static char paths[4][4096];
	static int n;
	const char *build = getenv("top_builddir");
	char *p = paths[n++ % 4];

	snprintf(p, sizeof(paths[0]), "%s/%s", build ? build : ".", path);
	return p;
}

static void *open_driver(void)
{
	void *handle = dlopen(in_build("tests/sim/.libs/libcuda.so.1"),
			      RTLD_NOW | RTLD_LOCAL);

	CHECK(handle);
	return handle;
}

static const struct {
	const char *symbol;
	int api;
} rows[] = {
#define API(symbol, base, since, flags) {#symbol, VS_API_##symbol},
#define USE(symbol, base, since, flags) {#symbol, -1},
#include "api.def"
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void run(void (*fn)(void *arg))
{
	child_run(&c, NULL, fn, NULL);
	assert_child_ok(&c);
}

static void check_unbound(void *arg)
{
	CUdeviceptr p;

	(void)arg;
	CHECK(!vs_real_bound() && !vs_real_ready());
	CHECK(vs_real.cuMemAlloc_v2(&p, 1) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(vs_real.cuStreamSynchronize_ptsz(0) ==
	      CUDA_ERROR_NOT_INITIALIZED);
	CHECK(!vs_real.cuEventDestroy_v2);
	CHECK(vs_real_row(check_unbound) == -1 && vs_real_row(NULL) == -1);
	CHECK(!vs_real_bind(NULL));
	CHECK(!vs_real_bind((void *)malloc));
	CHECK(!vs_real_bound());
	CHECK(!strcmp(vs_real_error(CUDA_ERROR_UNKNOWN), "unknown error"));
}

static void unbound(void **unused)
{
	(void)unused;
	run(check_unbound);
}

static CUresult lent(CUdeviceptr p)
{
	(void)p;
	return CUDA_ERROR_ALREADY_MAPPED;
}

static void check_lend(void *arg)
{
	void *handle;

	(void)arg;
	vs_real_lend(VS_API_cuMemFree_v2, (void *)lent);
	CHECK(vs_real.cuMemFree_v2(1) == CUDA_ERROR_ALREADY_MAPPED);
	CHECK(!vs_real_ready());
	handle = open_driver();
	CHECK(vs_real_bind(NULL));
	CHECK((void *)vs_real.cuMemFree_v2 == dlsym(handle, "cuMemFree_v2"));
	vs_real_lend(VS_API_cuMemFree_v2, (void *)lent);
	CHECK((void *)vs_real.cuMemFree_v2 == dlsym(handle, "cuMemFree_v2"));
}

static void lend(void **unused)
{
	(void)unused;
	run(check_lend);
}

static void check_rows(void *handle)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		void *function = dlsym(handle, rows[i].symbol);

		if (function && vs_real_row(function) != rows[i].api)
			vs_error("%s is row %d", rows[i].symbol,
				 vs_real_row(function));
		CHECK(function == NULL || vs_real_row(function) == rows[i].api);
	}
}

static void check_bind(void *arg)
{
	void *handle = open_driver(), *function;
	const char *name;

	(void)arg;
	CHECK(!vs_real_bind((void *)malloc)); /* some other library */
	CHECK(!vs_real_bound());
	CHECK(vs_real_bind(dlsym(handle, "cuCtxGetCurrent")));
	CHECK(vs_real_bound() && vs_real_ready());
	check_rows(handle);
	CHECK(vs_real.cuInit(0) == CUDA_SUCCESS);
	vs_real_complete();
	check_rows(handle);
	CHECK(vs_real_row(check_bind) == -1 && vs_real_row(NULL) == -1);
	CHECK(vs_real.cuGetProcAddress_v2("cuMemAlloc", &function, 3020, 0,
					  NULL) == CUDA_SUCCESS);
	CHECK(vs_real_row(function) == VS_API_cuMemAlloc_v2);
	name = vs_real_error(CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(!strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY"));
	CHECK(!strcmp(vs_real_error((CUresult)12345), "unknown error"));
	/* the program closes it: it stays */
	dlclose(handle);
	CHECK(vs_real.cuInit(0) == CUDA_SUCCESS);
}

static void bind(void **unused)
{
	(void)unused;
	run(check_bind);
}

static void check_older(void *arg)
{
	void *handle = open_driver();

	(void)arg;
	CHECK(vs_real_bind(NULL));
	check_rows(handle);
}

static void older(void **unused)
{
	static const char *const environment[] = {"SIM_DRIVER_VERSION=12040",
						  NULL};

	(void)unused;
	child_run(&c, environment, check_older, NULL);
	assert_child_ok(&c);
}

static void check_complete(void *arg)
{
	check_older(arg);
	CHECK(vs_real.cuInit(0) == CUDA_SUCCESS);
	vs_real_complete();
}

/* A tool that looks at each call would say that the program made an error. */
static void asks_for_nothing_newer(void **unused)
{
	static const char *const environment[] = {"SIM_TRACE=1", NULL};

	(void)unused;
	child_run(&c, environment, check_complete, NULL);
	assert_child_ok(&c);
	assert_non_null(strstr(c.err, "sim: cuGetProcAddress_v2 = 0"));
	assert_null(strstr(c.err, "sim: cuGetProcAddress_v2 = 1"));
}

/* Copies a file; returns the copy's path. */
static const char *copy(const char *from, const char *dir, const char *name)
{
	static char to[4200];
	char command[16384];

	snprintf(to, sizeof(to), "%s/%s", dir, name);
	snprintf(command, sizeof(command), "cp '%s' '%s'", from, to);
	CHECK(system(command) == 0);
	return to;
}

static void check_second(void *arg)
{
	void *first = open_driver(), *second, *function;

	second = dlopen(copy(in_build("tests/sim/.libs/libcuda.so.1"), arg,
			     "libcuda.so.1"),
			RTLD_NOW);
	CHECK(second);
	function = dlsym(second, "cuMemAlloc_v2");
	CHECK(function != dlsym(first, "cuMemAlloc_v2"));
	/* the one that was found first, though it was loaded last */
	CHECK(vs_real_bind(function));
	check_rows(second);
	CHECK(vs_real_bind(dlsym(first, "cuMemAlloc_v2")));
	CHECK((void *)vs_real.cuMemAlloc_v2 == function);
	for (size_t i = 0; i < N_ROWS; i++)
		CHECK(vs_real_row(dlsym(first, rows[i].symbol)) == -1);
}

static void check_partial(void *arg)
{
	void *handle;

	handle = dlopen(copy(in_build("tests/e2e/.libs/roads_other.so"), arg,
			     "libcuda.so.9"),
			RTLD_NOW);
	CHECK(handle);
	vs_log_level = VS_LOG_INFO;
	CHECK(!vs_real_bind(dlsym(handle, "cuInit")));
	CHECK(vs_real_bound() && !vs_real_ready());
	/* what it has is called, what it has not is an error */
	CHECK(vs_real.cuMemAlloc_v2(NULL, 0) == 2);
	CHECK(vs_real.cuMemFree_v2(0) == CUDA_ERROR_NOT_SUPPORTED);
	/* for good: an image that comes later is another one */
	CHECK(!vs_real_bind(dlsym(open_driver(), "cuInit")));
	CHECK(vs_real.cuMemAlloc_v2(NULL, 0) == 2);
}

static void check_no_name(void *arg)
{
	void *handle = dlopen(copy(in_build("tests/sim/.libs/libcuda.so.1"),
				   arg, "mylibcuda.so.1"),
			      RTLD_NOW);

	CHECK(handle);
	CHECK(!vs_real_bind(dlsym(handle, "cuInit")));
	CHECK(!vs_real_bind(NULL));
}

static void in_folder(void (*fn)(void *arg))
{
	char dir[] = "/tmp/vs_test_real.XXXXXX";
	char command[64];

	assert_non_null(mkdtemp(dir));
	child_run(&c, NULL, fn, dir);
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	assert_int_equal(system(command), 0);
	assert_child_ok(&c);
}

static void second(void **unused)
{
	(void)unused;
	in_folder(check_second);
}

static void partial(void **unused)
{
	(void)unused;
	in_folder(check_partial);
	assert_string_equal(child_text(&c), "vmmshim info: this libcuda has no "
					    "cuMemFree_v2: left alone\n");
}

static void no_name(void **unused)
{
	(void)unused;
	in_folder(check_no_name);
}

#define N_RACERS 16

static pthread_barrier_t start;

static void *race(void *handle)
{
	void *function = dlsym(handle, "cuMemFree_v2");

	pthread_barrier_wait(&start);
	CHECK(vs_real_bind(function));
	CHECK(vs_real_row(function) == VS_API_cuMemFree_v2);
	CHECK((void *)vs_real.cuMemFree_v2 == function);
	return NULL;
}

static void check_race(void *arg)
{
	pthread_t threads[N_RACERS];
	void *handle = open_driver();

	(void)arg;
	pthread_barrier_init(&start, NULL, N_RACERS);
	for (int i = 0; i < N_RACERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, race, handle));
	for (int i = 0; i < N_RACERS; i++)
		pthread_join(threads[i], NULL);
	check_rows(handle);
}

static void racing(void **unused)
{
	(void)unused;
	run(check_race);
}

/* The loader's own answer for a name in the object that holds `address`. */
static void compare(const struct vs_image *image, void *handle,
		    const char *name)
{
	assert_ptr_equal(vs_loader_symbol(image, name), dlsym(handle, name));
}

static int find_image(struct dl_phdr_info *info, size_t size, void *data)
{
	struct vs_image *image = data;

	(void)size;
	if (!strstr(info->dlpi_name, image->path))
		return 0;
	image->bias = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			image->dynamic = (void *)(info->dlpi_addr +
						  info->dlpi_phdr[i].p_vaddr);
	return 1;
}

static void look_up(void **unused)
{
	static const char *const names[] = {
		"malloc", "dlsym",	     "dlvsym",	"pthread_create",
		"fopen",  "dl_iterate_phdr", "nothing", "",
	};
	static const char *const others[] = {"cuInit", "c", "cu", "curl", ""};
	struct vs_image image = {.path = "libc.so.6"};
	void *handle = dlopen("libc.so.6", RTLD_NOW);

	(void)unused;
	assert_true(dl_iterate_phdr(find_image, &image) == 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		compare(&image, handle, names[i]);
	/* data is no function */
	assert_null(vs_loader_symbol(&image, "environ"));
	/* a library with the old kind of hash table only */
	handle = dlopen(in_build("tests/e2e/.libs/roads_other.so"), RTLD_NOW);
	assert_non_null(handle);
	image.path = "roads_other.so";
	assert_true(dl_iterate_phdr(find_image, &image) == 1);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		compare(&image, handle, others[i]);
}

static void next_dlsym(void **unused)
{
	struct vs_image self;

	(void)unused;
	vs_loader_find();
	assert_ptr_equal(vs_loader_dlsym, dlsym(RTLD_NEXT, "dlsym"));
	assert_ptr_equal(vs_loader_dlvsym, dlsym(RTLD_NEXT, "dlvsym"));
	assert_true(vs_loader_self(&self));
	assert_true(vs_loader_is_own((void *)next_dlsym));
	assert_false(vs_loader_is_own((void *)vs_loader_dlsym));
	assert_false(vs_loader_is_own(NULL));
	assert_true(vs_loader_is_behind((void *)vs_loader_dlsym));
	assert_false(vs_loader_is_behind((void *)next_dlsym));
}

/* ---- looks and forks ------------------------------------------------- */

/*
 * What took longer may have given up waiting, be it as the machine is busy:
 * that is after 100 ms by a clock of whole ones, so after 99.
 */
#define PATIENCE_NS UINT64_C(90000000)

static atomic_bool is_over, is_forking;
static atomic_int n_met;

static void spend(uint64_t ns)
{
	uint64_t began = vs_clock_ns(CLOCK_MONOTONIC);

	while (vs_clock_ns(CLOCK_MONOTONIC) - began < ns)
		;
}

static int note_forks(struct dl_phdr_info *info, size_t size, void *data)
{
	bool *has_met_out = data;

	(void)info;
	(void)size;
	for (int i = 0; i < 20; i++)
		*has_met_out |= atomic_load(&is_forking);
	return 1;
}

static void *keep_looking(void *unused)
{
	while (!is_over) {
		uint64_t began = vs_clock_ns(CLOCK_MONOTONIC);
		bool has_met = false;

		vs_loader_iterate(note_forks, &has_met);
		if (has_met &&
		    vs_clock_ns(CLOCK_MONOTONIC) - began < PATIENCE_NS)
			n_met++;
	}
	return unused;
}

/* As fork() does, one fork after the other. */
static void *keep_forking(void *unused)
{
	while (!is_over) {
		uint64_t began = vs_clock_ns(CLOCK_MONOTONIC);

		vs_loader_before_fork();
		atomic_store(&is_forking, vs_clock_ns(CLOCK_MONOTONIC) - began <
						  PATIENCE_NS);
		spend(2000);
		atomic_store(&is_forking, false);
		vs_loader_after_fork();
		spend(500);
	}
	return unused;
}

static void check_turns(void *unused)
{
	pthread_t threads[2];

	(void)unused;
	CHECK(!pthread_create(&threads[0], NULL, keep_looking, NULL));
	CHECK(!pthread_create(&threads[1], NULL, keep_forking, NULL));
	for (int i = 0; i < 30 && n_met == 0; i++)
		usleep(100000);
	is_over = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(n_met == 0);
}

/* Forks that follow each other closely: a look waits for each. */
static void turns(void **unused)
{
	(void)unused;
	run(check_turns);
}

static int look_at_none(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)info;
	(void)size;
	(void)data;
	return 0;
}

static void *look_at_all(void *unused)
{
	while (!is_over)
		vs_loader_iterate(look_at_none, NULL);
	return unused;
}

/* It looks at the loader's objects itself; 0 when it could. */
static int life_of_child(void)
{
	int status = -1;
	uint64_t began = vs_clock_ns(CLOCK_MONOTONIC), took;
	pid_t pid = fork();

	if (pid == 0) {
		alarm(30);
		_exit(dl_iterate_phdr(look_at_none, NULL));
	}
	took = vs_clock_ns(CLOCK_MONOTONIC) - began;
	CHECK(pid > 0);
	if (took >= PATIENCE_NS)
		kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid);
	return took >= PATIENCE_NS ? 0 : status;
}

static void check_early(void *unused)
{
	pthread_t thread;

	(void)unused;
	CHECK(!pthread_create(&thread, NULL, look_at_all, NULL));
	for (int i = 0; i < 100; i++)
		CHECK(life_of_child() == 0);
	is_over = true;
	pthread_join(thread, NULL);
}

/* A thread looks before the shim has found a driver, and forever where none is.
 */
static void early(void **unused)
{
	(void)unused;
#if defined(__SANITIZE_THREAD__)
	skip(); /* it cannot follow forks */
#endif
	run(check_early);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(look_up),
		cmocka_unit_test(next_dlsym),
		cmocka_unit_test(unbound),
		cmocka_unit_test(lend),
		cmocka_unit_test(bind),
		cmocka_unit_test(older),
		cmocka_unit_test(asks_for_nothing_newer),
		cmocka_unit_test(second),
		cmocka_unit_test(partial),
		cmocka_unit_test(no_name),
		cmocka_unit_test(racing),
		cmocka_unit_test(turns),
		cmocka_unit_test(early),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
