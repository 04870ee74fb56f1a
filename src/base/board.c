/* SPDX-License-Identifier: MIT */
#include "base/board.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/kernel.h"
#include "base/meta.h"
#include "base/process.h"
#include "base/sys.h"

#define LAYOUT 3 /* of the segment; a part of its name */
#define MAGIC UINT64_C(0x764d4d6d65657421) /* of a segment of ours */
#define N_SLOTS 128
/* Somebody who has not answered for so long is stopped, or worse. */
#define DEAF_MS 2500
/* One who waits looks so often whether the other is still there. */
#define GLANCE_MS 20
/* One who found no slot looks again; two system calls a slot. */
#define FULL_MS 1000
/* The PID of a slot that is being cleared. */
#define NOBODY_YET UINT32_MAX
/* Of a join, while others remove what it finds. */
#define TRIES 10

struct entry {
	_Atomic uint64_t device; /* 0: no pool */
	_Atomic uint64_t since;	 /* last answer, or first ask after it; ms */
	_Atomic uint64_t given;	 /* bytes, ever: more asks than one may be
				  * under way */
	_Atomic uint32_t asked, answered; /* counts; answered is slept on */
};

struct slot {
	_Atomic uint32_t pid;  /* 0: never used */
	_Atomic uint32_t bell; /* a count; the owner sleeps on it */
	_Atomic uint32_t is_closed;
	uint32_t unused;
	struct entry pool[VS_BOARD_POOLS];
};

struct board {
	_Atomic uint64_t magic;	    /* 0: just made */
	_Atomic uint32_t n_closing; /* see remove_if_last() */
	uint32_t unused;
	struct slot slot[N_SLOTS];
};

static _Atomic(struct board *) board;
static _Atomic(struct slot *) mine;
static bool is_full;	    /* no slot was to be had; the sleeping thread's */
static _Atomic int segment; /* the id of the last that was joined */
static _Atomic uint32_t alone; /* the bell of a process without a slot */
/*
 * Threads that look at a board, by the moves from one to the next that there
 * had been. One that was left goes once nobody looks at it, or each removal of
 * a segment would leave one behind, of which the system has SHMMNI.
 */
static _Atomic unsigned n_moves, n_looking[2];
static struct board *left; /* attached still; the sleeping thread's */

/* All of them: who has left a slot may yet sleep on its bell. */
static void wake(_Atomic uint32_t *word)
{
	vs_kernel(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* At most `ms` (0: no limit) while the word has this value. */
static void doze(_Atomic uint32_t *word, uint32_t value, uint64_t ms)
{
	struct timespec t = {.tv_sec = (time_t)(ms / 1000),
			     .tv_nsec = (long)(ms % 1000) * 1000000};

	if (vs_kernel(SYS_futex, word, FUTEX_WAIT, value, ms ? &t : NULL, NULL,
		      0) < 0 &&
	    errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
		vs_cancel_free_sleep(5000000); /* a sandbox without futexes */
}

/*
 * What is seen of a board from here on stays until end_look(). The sleeping
 * thread, which alone moves, need not say so.
 */
static unsigned begin_look(void)
{
	for (;;) {
		unsigned turn = atomic_load(&n_moves);

		atomic_fetch_add(&n_looking[turn % 2], 1);
		if (atomic_load(&n_moves) == turn)
			return turn;
		atomic_fetch_sub(&n_looking[turn % 2], 1);
	}
}

static void end_look(unsigned turn)
{
	atomic_fetch_sub(&n_looking[turn % 2], 1);
}

static _Atomic uint32_t *bell(void)
{
	struct slot *s = atomic_load(&mine);

	return s ? &s->bell : &alone;
}

void vs_board_ring(void)
{
	unsigned turn = begin_look();
	_Atomic uint32_t *b = bell();
	int saved = errno;

	atomic_fetch_add(b, 1);
	wake(b);
	end_look(turn);
	errno = saved;
}

uint32_t vs_board_rung(void)
{
	return atomic_load(bell());
}

void vs_board_sleep(uint32_t rung, uint64_t ms)
{
	doze(bell(), rung, is_full && (ms == 0 || ms > FULL_MS) ? FULL_MS : ms);
}

/* ---- slots ----------------------------------------------------------- */

/* Whoever cannot tell each other's PIDs apart must not meet. */
static bool name_of(key_t *key_out)
{
	struct stat space;
	uint64_t h = LAYOUT;

	if (vs_sys_stat("/proc/self/ns/pid", &space) != 0)
		return false;
	h = (h ^ (uint64_t)space.st_ino) * UINT64_C(0x9e3779b97f4a7c15);
	h = (h ^ h >> 32 ^ vs_sys_geteuid()) * UINT64_C(0x9e3779b97f4a7c15);
	*key_out = (key_t)(h >> 33 | 1); /* not IPC_PRIVATE */
	return true;
}

static bool is_own(const struct shmid_ds *about)
{
	return about->shm_perm.uid == vs_sys_geteuid() &&
	       about->shm_perm.cuid == vs_sys_geteuid() &&
	       !(about->shm_perm.mode & 0077);
}

/*
 * Removes the segment if nobody else is attached. Whoever attaches meanwhile is
 * counted, or sees that it is being closed and makes another: it attaches and
 * then looks, here it is said first. Where it was removed that stays said. A
 * process that is killed in between leaves it so, for the next to remove. In an
 * IPC namespace that the program has entered since the number may be that of a
 * segment of its own.
 */
static void remove_if_last(struct board *b, int id)
{
	struct shmid_ds about;

	atomic_fetch_add(&b->n_closing, 1);
	if (vs_sys_shmctl(id, IPC_STAT, &about) == 0 &&
	    about.shm_segsz == sizeof(*b) && about.shm_nattch <= 1 &&
	    vs_sys_shmctl(id, IPC_RMID, NULL) == 0)
		return;
	atomic_fetch_sub(&b->n_closing, 1);
}

/*
 * Removes what those left in other PID namespaces who were all killed. What is
 * of this user and size, has nobody and says that it is ours is: one that was
 * just made does not say so yet.
 */
static void sweep(void)
{
	struct shm_info all;
	struct shmid_ds about;
	int last = vs_sys_shmctl(0, SHM_INFO, (struct shmid_ds *)&all);

	for (int i = 0; i <= last; i++) {
		int id = vs_sys_shmctl(i, SHM_STAT, &about);
		struct board *b;

		if (id < 0 || !is_own(&about) || about.shm_nattch > 0 ||
		    about.shm_segsz != sizeof(*b))
			continue;
		b = vs_sys_shmat(id, NULL, 0);
		if (b == (void *)-1)
			continue;
		if (atomic_load(&b->magic) == MAGIC)
			remove_if_last(b, id);
		vs_sys_shmdt(b);
	}
}

static struct board *attach(int *id_out)
{
	struct shmid_ds about;
	struct board *b;
	key_t key;

	if (!name_of(&key))
		return NULL;
	for (int i = 0; i < TRIES; i++) {
		int id = vs_sys_shmget(key, sizeof(*b), IPC_CREAT | 0600);

		if (id < 0)
			return NULL;
		/* it may be gone by now */
		if (vs_sys_shmctl(id, IPC_STAT, &about) != 0)
			continue;
		b = is_own(&about) ? vs_sys_shmat(id, NULL, 0) : (void *)-1;
		if (b == (void *)-1)
			continue;
		if (atomic_load(&b->n_closing) == 0) {
			*id_out = id;
			/* one more there is, so others may be in the way */
			if (atomic_exchange(&b->magic, MAGIC) != MAGIC)
				sweep();
			return b;
		}
		remove_if_last(b, id);
		vs_sys_shmdt(b);
		vs_cancel_free_sleep(VS_MS);
	}
	is_full = true; /* as good as: a later try may find another */
	return NULL;
}

static bool claim(struct slot *s, uint32_t me)
{
	uint32_t owner = atomic_load(&s->pid);

	/* one that has left may be a zombie for long */
	if (owner == NOBODY_YET || (owner != 0 && !atomic_load(&s->is_closed) &&
				    !vs_process_is_gone((pid_t)owner)))
		return false;
	if (!atomic_compare_exchange_strong(&s->pid, &owner, NOBODY_YET))
		return false;
	for (int i = 0; i < VS_BOARD_POOLS; i++)
		atomic_store(&s->pool[i].device, 0);
	atomic_store(&s->is_closed, 0);
	atomic_store(&s->pid, me);
	return true;
}

/* Of a program that this process was before it called exec. */
static void abandon(struct board *b, uint32_t me)
{
	for (int i = 0; i < N_SLOTS; i++) {
		uint32_t owner = me;

		atomic_compare_exchange_strong(&b->slot[i].pid, &owner, 0);
	}
}

/*
 * This process's; NULL for who has left, as another may have it by now, and for
 * a child that was made behind our back, which has its parent's.
 */
static struct slot *own_slot(void)
{
	struct slot *s = atomic_load(&mine);

	return s && atomic_load(&s->pid) == (uint32_t)vs_sys_getpid() ? s
								      : NULL;
}

/*
 * Somebody else removed the segment: who comes later makes another. In an IPC
 * namespace that the program has entered since the number may be another's.
 */
static bool is_removed(void)
{
	struct shmid_ds about;

	return vs_sys_shmctl(segment, IPC_STAT, &about) == 0 &&
	       about.shm_segsz == sizeof(struct board) &&
	       (about.shm_perm.mode & SHM_DEST);
}

bool vs_board_is_missed(void)
{
	struct slot *s = own_slot();
	int saved = errno;
	bool is;

	if (!s)
		return is_full && !atomic_load(&mine);
	is = is_full || is_removed();
	errno = saved;
	/* last: it may be removed because this process leaves */
	return is && !atomic_load(&s->is_closed);
}

/*
 * What was left is detached; false: somebody looks yet who began before the
 * last move, be it at what was left or at what was moved to.
 */
static bool let_go(void)
{
	if (atomic_load(&n_looking[(n_moves + 1) % 2]) > 0)
		return false;
	if (left)
		vs_sys_shmdt(left);
	left = NULL;
	return true;
}

static void move_to(struct board *b, struct slot *s, int id)
{
	struct slot *old = atomic_load(&mine);

	segment = id;
	left = atomic_exchange(&board, b);
	atomic_store(&mine, s);
	/* who looks from here on sees these */
	atomic_fetch_add(&n_moves, 1);
	/* whoever rang before was not heard */
	vs_board_ring();
	/* this process has left meanwhile */
	if (old && atomic_exchange(&old->is_closed, 1))
		vs_board_leave();
	let_go();
}

void vs_board_join(void)
{
	uint32_t me = (uint32_t)vs_sys_getpid();
	struct board *b;
	int id;

	if (atomic_load(&mine) && !vs_board_is_missed())
		return;
	if (!let_go())
		return;
	b = attach(&id);
	if (!b)
		return;
	is_full = false;
	abandon(b, me);
	for (int i = 0; i < N_SLOTS; i++) {
		if (claim(&b->slot[i], me)) {
			move_to(b, &b->slot[i], id);
			return;
		}
	}
	is_full = true;
	vs_sys_shmdt(b);
}

void vs_board_leave(void)
{
	unsigned turn = begin_look();
	struct slot *s = own_slot();

	if (s) {
		atomic_store(&s->is_closed, 1);
		/* it keeps its PID namespace, and there are SHMMNI of them */
		remove_if_last(atomic_load(&board), segment);
	}
	end_look(turn);
}

void vs_board_forked(void)
{
	struct board *b = atomic_exchange(&board, NULL);

	atomic_store(&mine, NULL);
	/* of threads that are gone */
	atomic_store(&n_looking[0], 0);
	atomic_store(&n_looking[1], 0);
	let_go();
	/* else it would be there, to the parent that leaves */
	if (b)
		vs_sys_shmdt(b);
}

/* ---- answers --------------------------------------------------------- */

static struct entry *own(unsigned i)
{
	struct slot *s = i < VS_BOARD_POOLS ? own_slot() : NULL;

	return s ? &s->pool[i] : NULL;
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
	atomic_fetch_add(&e->given, bytes);
	/* another ask may have come meanwhile: its time begins here */
	atomic_store(&e->since, vs_clock_ms());
	atomic_store(&e->answered, number);
	wake(&e->answered);
}

/* ---- questions ------------------------------------------------------- */

/* One ask that is under way. */
struct ask {
	struct slot *slot;
	struct entry *entry;
	uint64_t given; /* before */
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

	if (pid == 0 || pid == NOBODY_YET || s == atomic_load(&mine) ||
	    atomic_load(&s->is_closed))
		return NULL;
	for (int i = 0; i < VS_BOARD_POOLS; i++)
		if (atomic_load(&s->pool[i].device) == device)
			return &s->pool[i];
	return NULL;
}

/* Clocks of processes may differ by a time namespace. */
static bool is_unanswered(struct entry *e)
{
	return atomic_load(&e->asked) != atomic_load(&e->answered) &&
	       (int64_t)(vs_clock_ms() - atomic_load(&e->since)) >= DEAF_MS;
}

/* One thread answers for all its devices. */
static bool is_deaf(struct slot *s)
{
	for (int i = 0; i < VS_BOARD_POOLS; i++)
		if (atomic_load(&s->pool[i].device) &&
		    is_unanswered(&s->pool[i]))
			return true;
	return false;
}

static bool ask(struct slot *s, uint64_t device, struct ask *a)
{
	struct entry *e = find(s, device);

	if (!e || is_deaf(s))
		return false;
	if (atomic_load(&e->asked) == atomic_load(&e->answered))
		atomic_store(&e->since, vs_clock_ms());
	a->slot = s;
	a->entry = e;
	a->pid = atomic_load(&s->pid);
	a->given = atomic_load(&e->given);
	a->number = atomic_fetch_add(&e->asked, 1) + 1;
	atomic_fetch_add(&s->bell, 1);
	wake(&s->bell);
	return true;
}

/* Whether it will not answer, as it ends; nobody else shall ask it then. */
static bool has_left(const struct ask *a)
{
	uint32_t owner = a->pid;

	if (atomic_load(&a->slot->is_closed) ||
	    atomic_load(&a->slot->pid) != a->pid)
		return true;
	return vs_process_is_gone((pid_t)a->pid) &&
	       atomic_compare_exchange_strong(&a->slot->pid, &owner, 0);
}

/* At most `patience` (ns), of which the time that it took is taken. */
static uint64_t wait_for(const struct ask *a, uint64_t *patience)
{
	uint64_t last = vs_clock_ns(CLOCK_MONOTONIC);

	while (!is_answered(a)) {
		uint32_t seen = atomic_load(&a->entry->answered);
		uint64_t ms = (*patience + VS_MS - 1) / VS_MS, passed;

		if (ms == 0)
			return 0;
		if (has_left(a))
			return 1; /* what it had is the driver's again */
		if (!is_answered(a))
			doze(&a->entry->answered, seen,
			     ms < GLANCE_MS ? ms : GLANCE_MS);
		passed = vs_clock_passed(&last, vs_clock_ns(CLOCK_MONOTONIC));
		*patience -= passed < *patience ? passed : *patience;
	}
	return atomic_load(&a->entry->given) - a->given;
}

static uint64_t ask_all(struct board *b, uint64_t device, uint64_t ms,
			int *n_out)
{
	uint64_t patience = ms * VS_MS, bytes = 0;
	struct ask *asks; /* not on the stack, which may be small */
	int n = 0, saved = errno;

	*n_out = 0;
	asks = b && device ? vs_meta_alloc(N_SLOTS * sizeof(*asks)) : NULL;
	if (!asks)
		return 0;
	for (int i = 0; i < N_SLOTS; i++)
		n += ask(&b->slot[i], device, &asks[n]);
	for (int i = 0; i < n; i++)
		bytes += wait_for(&asks[i], &patience);
	*n_out = n;
	vs_meta_free(asks, N_SLOTS * sizeof(*asks));
	errno = saved;
	return bytes;
}

uint64_t vs_board_ask(uint64_t device, uint64_t ms, int *n_out)
{
	unsigned turn = begin_look();
	uint64_t bytes = ask_all(atomic_load(&board), device, ms, n_out);

	end_look(turn);
	return bytes;
}
