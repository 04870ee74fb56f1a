/* SPDX-License-Identifier: MIT */
#include "base/board.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"

#define LAYOUT 1 /* of the segment; a part of its name */
#define N_SLOTS 128
/* Somebody who has not answered for so long is stopped, or worse. */
#define DEAF_MS 1000
/* One who waits looks so often whether the other is still there. */
#define GLANCE_MS 20

struct entry {
	_Atomic uint64_t device; /* 0: no pool */
	_Atomic uint64_t since;	 /* the oldest ask without an answer; ms */
	_Atomic uint64_t given;	 /* bytes, by the last answer */
	_Atomic uint32_t asked, answered; /* counts; answered is slept on */
};

struct slot {
	_Atomic uint32_t pid; /* 0: never used */
	_Atomic uint32_t word;
	_Atomic uint32_t is_closed;
	uint32_t unused;
	struct entry pool[VS_BOARD_POOLS];
};

struct board {
	struct slot slot[N_SLOTS];
};

static _Atomic(struct board *) board;
static _Atomic(struct slot *) mine;
static _Atomic uint32_t alone; /* the word of a process without a slot */

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, uint64_t ms)
{
	struct timespec t = {.tv_sec = (time_t)(ms / 1000),
			     .tv_nsec = (long)(ms % 1000) * 1000000};

	return syscall(SYS_futex, word, op, value, ms ? &t : NULL, NULL, 0);
}

static _Atomic uint32_t *word(void)
{
	struct slot *s = atomic_load(&mine);

	return s ? &s->word : &alone;
}

void vs_board_post(uint32_t bits)
{
	_Atomic uint32_t *w = word();
	int saved = errno;

	atomic_fetch_or(w, bits);
	futex(w, FUTEX_WAKE, 1, 0);
	errno = saved;
}

uint32_t vs_board_take(void)
{
	return atomic_exchange(word(), 0);
}

uint32_t vs_board_look(void)
{
	return atomic_load(word());
}

void vs_board_sleep(uint64_t ms)
{
	if (futex(word(), FUTEX_WAIT, 0, ms) < 0 && errno != EAGAIN &&
	    errno != EINTR && errno != ETIMEDOUT)
		vs_cancel_free_sleep(50000000); /* a sandbox without futexes */
}

/* ---- slots ----------------------------------------------------------- */

static bool is_gone(uint32_t pid)
{
	return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* Whoever cannot tell each other's PIDs apart must not meet. */
static bool name_of(key_t *key_out)
{
	struct stat space;
	uint64_t h = LAYOUT;

	if (stat("/proc/self/ns/pid", &space) != 0)
		return false;
	h = (h ^ (uint64_t)space.st_ino) * UINT64_C(0x9e3779b97f4a7c15);
	h = (h ^ h >> 32 ^ geteuid()) * UINT64_C(0x9e3779b97f4a7c15);
	*key_out = (key_t)(h >> 33 | 1); /* not IPC_PRIVATE */
	return true;
}

static struct board *attach(void)
{
	struct shmid_ds about;
	key_t key;
	void *p;
	int id;

	if (!name_of(&key))
		return NULL;
	id = shmget(key, sizeof(struct board), IPC_CREAT | 0600);
	if (id < 0 || shmctl(id, IPC_STAT, &about) != 0 ||
	    about.shm_perm.uid != geteuid() || (about.shm_perm.mode & 0077))
		return NULL;
	p = shmat(id, NULL, 0);
	return p == (void *)-1 ? NULL : p;
}

/* Also a slot of this very PID: of a program that called exec. */
static bool claim(struct slot *s, uint32_t me)
{
	uint32_t owner = atomic_load(&s->pid);

	if (owner != 0 && owner != me && !is_gone(owner))
		return false;
	if (!atomic_compare_exchange_strong(&s->pid, &owner, me))
		return false;
	for (int i = 0; i < VS_BOARD_POOLS; i++)
		atomic_store(&s->pool[i].device, 0);
	atomic_store(&s->word, atomic_exchange(&alone, 0));
	atomic_store(&s->is_closed, 0);
	return true;
}

void vs_board_join(void)
{
	struct board *b = attach();
	uint32_t me = (uint32_t)getpid();

	if (!b)
		return;
	for (int i = 0; i < N_SLOTS; i++) {
		if (claim(&b->slot[i], me)) {
			atomic_store(&mine, &b->slot[i]);
			atomic_store(&board, b);
			return;
		}
	}
	shmdt(b);
}

void vs_board_leave(void)
{
	struct slot *s = atomic_load(&mine);

	if (s)
		atomic_store(&s->is_closed, 1);
}

void vs_board_forked(void)
{
	atomic_store(&mine, NULL);
	atomic_store(&board, NULL);
	atomic_store(&alone, 0);
}

/* ---- answers --------------------------------------------------------- */

static struct entry *own(unsigned i)
{
	struct slot *s = atomic_load(&mine);

	return s && i < VS_BOARD_POOLS ? &s->pool[i] : NULL;
}

void vs_board_show(unsigned i, uint64_t device)
{
	struct entry *e = own(i);

	if (!e || atomic_load(&e->device) == device)
		return;
	atomic_store(&e->answered, atomic_load(&e->asked));
	atomic_store(&e->device, device);
}

bool vs_board_is_asked(unsigned i, uint32_t *number_out)
{
	struct entry *e = own(i);

	if (!e || !atomic_load(&e->device))
		return false;
	*number_out = atomic_load(&e->asked);
	return *number_out != atomic_load(&e->answered);
}

void vs_board_answer(unsigned i, uint32_t number, uint64_t bytes)
{
	struct entry *e = own(i);

	if (!e)
		return;
	atomic_store(&e->given, bytes);
	atomic_store(&e->answered, number);
	futex(&e->answered, FUTEX_WAKE, N_SLOTS, 0);
}

/* ---- questions ------------------------------------------------------- */

/* One ask that is under way. */
struct ask {
	struct entry *entry;
	uint32_t number, pid;
};

static bool is_answered(const struct ask *a)
{
	return (int32_t)(atomic_load(&a->entry->answered) - a->number) >= 0;
}

/* The entry of a process that can be asked for a device. */
static struct entry *find(struct slot *s, uint64_t device)
{
	uint32_t pid = atomic_load(&s->pid);

	if (pid == 0 || s == atomic_load(&mine) || atomic_load(&s->is_closed))
		return NULL;
	for (int i = 0; i < VS_BOARD_POOLS; i++)
		if (atomic_load(&s->pool[i].device) == device)
			return is_gone(pid) ? NULL : &s->pool[i];
	return NULL;
}

static bool ask(struct slot *s, uint64_t device, struct ask *ask_out)
{
	struct entry *e = find(s, device);
	uint64_t now = now_ms();

	if (!e)
		return false;
	if (atomic_load(&e->asked) == atomic_load(&e->answered))
		atomic_store(&e->since, now);
	else if (now - atomic_load(&e->since) >= DEAF_MS)
		return false;
	ask_out->entry = e;
	ask_out->pid = atomic_load(&s->pid);
	ask_out->number = atomic_fetch_add(&e->asked, 1) + 1;
	atomic_fetch_or(&s->word, VS_BOARD_ASKED);
	futex(&s->word, FUTEX_WAKE, 1, 0);
	return true;
}

static uint64_t wait_for(const struct ask *a, uint64_t until)
{
	while (!is_answered(a)) {
		uint32_t seen = atomic_load(&a->entry->answered);
		uint64_t now = now_ms();

		if (now >= until || is_gone(a->pid))
			return 0;
		if (!is_answered(a) &&
		    futex(&a->entry->answered, FUTEX_WAIT, seen,
			  until - now < GLANCE_MS ? until - now : GLANCE_MS) <
			    0 &&
		    errno == ENOSYS)
			return 0;
	}
	return atomic_load(&a->entry->given);
}

uint64_t vs_board_ask(uint64_t device, uint64_t ms)
{
	struct board *b = atomic_load(&board);
	uint64_t until = now_ms() + ms, bytes = 0;
	struct ask asks[N_SLOTS];
	int n = 0;

	if (!b || device == 0)
		return 0;
	for (int i = 0; i < N_SLOTS; i++)
		n += ask(&b->slot[i], device, &asks[n]);
	for (int i = 0; i < n; i++)
		bytes += wait_for(&asks[i], until);
	return bytes;
}
