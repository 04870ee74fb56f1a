/* SPDX-License-Identifier: MIT */
#include "base/meta.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fd.h"
#include "base/sys.h"

const char *vs_meta_overcommit_path = "/proc/sys/vm/overcommit_memory";

enum {
	SMALLEST_SHIFT = 6, /* 64 bytes: a cache line */
	N_SHIFTS = 24,	    /* up to 512 MiB from the lists */
	STEP = 2 << 20,	    /* taken from mmap at a time: a huge page */
};

struct free_item {
	struct free_item *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct free_item *lists[N_SHIFTS]; /* lock */
static char *step, *step_end;		  /* lock; the step being cut */
static char *next_step;			  /* lock; taken ahead, or NULL */

static unsigned shift_of(size_t size)
{
	unsigned shift = SMALLEST_SHIFT;

	while (((size_t)1 << shift) < size)
		shift++;
	return shift;
}

/*
 * What was reserved can be touched; NULL, and it is given back, if not. After
 * mlockall(MCL_FUTURE) all that can be touched is, when it is mapped, and
 * tables are large and hardly used: so they can be only when not locked.
 */
static void *unlock(void *p, size_t size)
{
	vs_sys_munlock(p, size);
	if (!mprotect(p, size, PROT_READ | PROT_WRITE))
		return p;
	munmap(p, size);
	return NULL;
}

static void *reserve(size_t size)
{
	void *p = mmap(NULL, size, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

bool vs_meta_has_room(size_t size)
{
	void *p = reserve(size);

	if (p)
		munmap(p, size);
	return p != NULL;
}

void *vs_meta_table(size_t size)
{
	void *p = reserve(size);

	p = p ? unlock(p, size) : NULL;
#ifdef MADV_NOHUGEPAGE
	/* where all memory has huge pages unasked, each touch would take one */
	if (p)
		vs_sys_madvise(p, size, MADV_NOHUGEPAGE);
#endif
	/* a pipe that takes a core file would get all that was never touched */
	if (p)
		vs_sys_madvise(p, size, MADV_DONTDUMP);
	return p;
}

void vs_meta_drop_table(void *table, size_t size)
{
	munmap(table, size);
}

/* Note [Huge pages]; where there is not that much room, any pages. */
static char *fresh_step(void)
{
	char *p = reserve((size_t)2 * STEP);
	size_t head = p ? -(uintptr_t)p % STEP : 0;

	if (!p)
		return vs_meta_table(STEP);
	if (head > 0)
		munmap(p, head);
	munmap(p + head + STEP, STEP - head);
	p = unlock(p + head, STEP);
#ifdef MADV_HUGEPAGE
	if (p)
		vs_sys_madvise(p, STEP, MADV_HUGEPAGE);
#endif
	return p;
}

/* A fresh piece of 1 << shift bytes; lock held. */
static void *cut(unsigned shift)
{
	size_t size = (size_t)1 << shift;
	char *p;

	if (size >= STEP)
		return vs_meta_table(size);
	if ((size_t)(step_end - step) < size) {
		p = next_step ? next_step : fresh_step();
		if (!p)
			return NULL;
		next_step = NULL;
		step = p;
		step_end = p + STEP;
	}
	p = step;
	step += size;
	return p;
}

void *vs_meta_alloc_dirty(size_t size)
{
	unsigned shift = shift_of(size);
	struct free_item *item;

	if (shift - SMALLEST_SHIFT >= N_SHIFTS)
		return NULL;
	pthread_mutex_lock(&lock);
	item = lists[shift - SMALLEST_SHIFT];
	if (item)
		lists[shift - SMALLEST_SHIFT] = item->next;
	else
		item = cut(shift);
	pthread_mutex_unlock(&lock);
	return item;
}

void *vs_meta_alloc(size_t size)
{
	void *p = vs_meta_alloc_dirty(size);

	if (p)
		memset(p, 0, size);
	return p;
}

void vs_meta_free(void *p, size_t size)
{
	unsigned shift = shift_of(size);
	struct free_item *item = p;

	if (!p)
		return;
	pthread_mutex_lock(&lock);
	item->next = lists[shift - SMALLEST_SHIFT];
	lists[shift - SMALLEST_SHIFT] = item;
	pthread_mutex_unlock(&lock);
}

void vs_meta_prepare(void)
{
	bool is_due;
	char *p;

	pthread_mutex_lock(&lock);
	is_due = step && !next_step && step_end - step < STEP / 4;
	pthread_mutex_unlock(&lock);
	p = is_due ? fresh_step() : NULL;
	if (!p)
		return;
	*(volatile char *)p = 0; /* the page comes now */
	pthread_mutex_lock(&lock);
	next_step = p;
	pthread_mutex_unlock(&lock);
}

static bool is_strict(int fd, void *unused)
{
	char policy;

	(void)unused;
	return vs_sys_read(fd, &policy, 1) == 1 && policy == '2';
}

bool vs_meta_is_counted(void)
{
	return vs_fd_ask(vs_meta_overcommit_path, is_strict, NULL);
}

void vs_meta_forked(void)
{
	pthread_mutex_init(&lock, NULL);
}
