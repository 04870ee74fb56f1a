/* SPDX-License-Identifier: MIT
 *
 * A free, stopped at each of its instructions in turn (the trap flag of
 * x86-64), while another thread ends the context it is called under, or that of
 * what it frees, and takes memory of that size for a context of its own.
 * Whatever the free answers, that memory is nobody else's.
 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "child.h"
#include "fake_test.h"

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) &&                    \
	!defined(__SANITIZE_ADDRESS__)

#define ENDING FAKE_CTX
#define OTHER ((CUcontext)0x2000)
#define TRAP_FLAG 0x100L
enum { MOST = 600, DEPTH = 8, PATIENCE_MS = 10 };

/* --- a current context for each thread ------------------------------------ */

static __thread CUcontext current, below[DEPTH];
static __thread int depth;
static _Atomic bool has_ended;

static CUresult get_current(CUcontext *out)
{
	*out = current;
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext ctx)
{
	below[depth++] = current;
	current = ctx;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *out)
{
	*out = current;
	current = below[--depth];
	return CUDA_SUCCESS;
}

static CUresult version_of(CUcontext ctx, unsigned int *out)
{
	*out = 3020;
	return (ctx ? ctx : current) == ENDING && atomic_load(&has_ended)
		       ? CUDA_ERROR_CONTEXT_IS_DESTROYED
		       : CUDA_SUCCESS;
}

static void fresh(void)
{
	fresh_driver(16 * GiB);
	vs_real.cuCtxGetCurrent = get_current;
	vs_real.cuCtxPushCurrent_v2 = push;
	vs_real.cuCtxPopCurrent_v2 = pop;
	vs_real.cuCtxGetApiVersion = version_of;
	atomic_store(&has_ended, false);
	vs_pool_ctx_born(ENDING, 0);
	vs_pool_ctx_born(OTHER, 0);
}

/* --- the other thread ----------------------------------------------------- */

static sem_t go, done;
static size_t size; /* of all blocks */
static CUdeviceptr theirs[MOST];
static int n_theirs; /* after `done` */

static int how_many(void)
{
	return size > MiB ? 8 : MOST;
}

static void *end_and_take(void *unused)
{
	for (;;) {
		struct vs_ctx *gone;

		while (sem_wait(&go) != 0)
			;
		current = OTHER;
		gone = vs_pool_ctx_dying(ENDING);
		atomic_store(&has_ended, true);
		for (n_theirs = 0; n_theirs < how_many(); n_theirs++) {
			if (vs_pool_alloc(size, &theirs[n_theirs]) !=
			    CUDA_SUCCESS)
				break;
		}
		vs_pool_ctx_gone(gone);
		sem_post(&done);
	}
	return unused;
}

/* --- the free, one instruction at a time ---------------------------------- */

static volatile long n_steps, stop_at;
static volatile bool is_on, is_stopped, is_through;

/* It may hold what the other thread needs: then that goes on beside it. */
static bool wait_a_little(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += PATIENCE_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return sem_timedwait(&done, &until) == 0;
}

static void on_trap(int signal_number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	(void)signal_number;
	(void)info;
	if (is_on && n_steps++ == stop_at) {
		is_stopped = true;
		sem_post(&go);
		is_through = wait_a_little();
		is_on = false;
	}
	if (!is_on)
		c->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static CUresult free_stepwise(CUdeviceptr p, long at)
{
	CUresult r;

	n_steps = 0;
	stop_at = at;
	is_stopped = is_through = false;
	is_on = true;
	__asm__ volatile("pushfq; orq %0, (%%rsp); popfq" ::"i"(TRAP_FLAG)
			 : "memory", "cc");
	r = vs_pool_free(p);
	is_on = false;
	__asm__ volatile("nop");
	return r;
}

/* --- what must hold ------------------------------------------------------- */

static CUdeviceptr take_one(void)
{
	CUdeviceptr p = 0;

	CHECK(vs_pool_alloc(size, &p) == CUDA_SUCCESS);
	return p;
}

static void take_and_give(void)
{
	CHECK(vs_pool_free(take_one()) == CUDA_SUCCESS);
}

static bool is_whole(CUdeviceptr p)
{
	struct vs_span span;

	return vs_pool_find(p, &span) && span.base == p && span.ctx == OTHER;
}

/* `freed`: perhaps one of theirs, which a thread of theirs then freed; or 0. */
static bool is_theirs_whole(CUdeviceptr freed)
{
	bool is_good = true;
	CUdeviceptr p;

	for (int i = 0; i < n_theirs; i++)
		is_good &= theirs[i] == freed || is_whole(theirs[i]);
	for (int k = 0; k < how_many() / 2; k++) {
		p = take_one();
		is_good &= is_whole(p);
		for (int i = 0; i < n_theirs; i++)
			is_good &= theirs[i] == freed || theirs[i] != p;
	}
	return is_good;
}

struct scene {
	CUcontext freer;
	size_t size;
	int n_blocks;
};

/* False: the free has no such instruction. */
static bool stop_once(const struct scene *s, long at)
{
	CUdeviceptr p = 0;
	CUresult r;

	current = ENDING;
	fresh();
	current = OTHER;
	take_and_give();
	current = ENDING;
	for (int i = 0; i < s->n_blocks; i++)
		p = take_one();
	take_and_give();
	current = s->freer;
	/* that of its context once only: a third would hand a batch over */
	if (s->freer != ENDING)
		take_and_give();
	r = free_stepwise(p, at);
	if (!is_stopped)
		return false;
	while (!is_through && sem_wait(&done) != 0)
		;
	current = OTHER;
	if (is_theirs_whole(r == CUDA_SUCCESS && s->freer == OTHER ? p : 0))
		return true;
	dprintf(STDERR_FILENO, "stopped at instruction %ld\n", at);
	_exit(99);
}

static void stop_everywhere(void *scene)
{
	struct sigaction action = {.sa_sigaction = on_trap,
				   .sa_flags = SA_SIGINFO | SA_NODEFER};
	const struct scene *s = scene;
	pthread_t other;
	long at = 0;

	sem_init(&go, 0, 0);
	sem_init(&done, 0, 0);
	CHECK(pthread_create(&other, NULL, end_and_take, NULL) == 0);
	sigaction(SIGTRAP, &action, NULL);
	size = s->size;
	while (stop_once(s, at))
		at++;
	CHECK(at > 50);
}

/* In a process of its own: each of some hundred drivers leaves its arena. */
static void play(CUcontext freer, size_t block, int n_blocks)
{
	struct scene s = {freer, block, n_blocks};
	static struct child c;

	if (is_on_valgrind())
		skip();
	child_run(&c, NULL, stop_everywhere, &s);
	assert_child_ok(&c);
}

static void test_small_own(void **state)
{
	(void)state;
	play(ENDING, 4 * KiB, 40);
}

static void test_small_of_the_ending_one(void **state)
{
	(void)state;
	play(OTHER, 4 * KiB, 40);
	play(OTHER, 64 * KiB, 40);
}

static void test_large_own(void **state)
{
	(void)state;
	play(ENDING, 4 * MiB, 3);
}

static void test_large_of_the_ending_one(void **state)
{
	(void)state;
	play(OTHER, 4 * MiB, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_own),
		cmocka_unit_test(test_small_of_the_ending_one),
		cmocka_unit_test(test_large_own),
		cmocka_unit_test(test_large_of_the_ending_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

/* Elsewhere there is no trap flag, and sanitizers count their own steps. */
int main(void)
{
	return 77;
}

#endif
