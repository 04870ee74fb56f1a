/* SPDX-License-Identifier: MIT
 *
 * meta: host memory for the shim's own structures.
 *
 * The shim never calls the program's malloc: an allocation may be made from
 * anywhere, also from inside a malloc of the program's own. Memory comes from
 * mmap in large steps and goes to free lists by power of two; it is type-
 * stable (never unmapped), so a reader without a lock sees old contents at
 * worst. Any thread; one short lock inside, the last of all.
 *
 * Note [Huge pages]: a large allocation reads and writes some hundred of these
 * structures, on as many pages, and a program that works has used all entries
 * of the TLB for other things by then; on a virtual machine each costs a walk
 * through two page tables. So they lie on huge pages, where the system gives
 * such to who asks (HACKING.md).
 */
#ifndef VS_BASE_META_H
#define VS_BASE_META_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed memory, aligned to 64 bytes; NULL when mmap fails. */
void *vs_meta_alloc(size_t size) __attribute__((malloc));
/* The same with whatever contents: what is large, and filled in part. */
void *vs_meta_alloc_dirty(size_t size) __attribute__((malloc));
/* Gives it back; `size` as asked for. NULL is ignored. */
void vs_meta_free(void *p, size_t size);

/*
 * Address space for a table of `size` bytes that reads as zero and takes
 * memory only where it is written, by the smallest page: a huge one is 2 MiB,
 * or 512 where pages have 64 KiB. Not in core files. NULL when mmap fails.
 */
void *vs_meta_table(size_t size);
/* One that nobody has seen yet. */
void vs_meta_drop_table(void *table, size_t size);

/* Whether so much more could be mapped, in one piece. */
bool vs_meta_has_room(size_t size);

/* The kernel's vm.overcommit_memory. Tests have their own. */
extern const char *vs_meta_overcommit_path;

/*
 * Whether tables count whole, as if all of them were written: a system that
 * promises no more than it has (2) takes MAP_NORESERVE for nothing, and what is
 * left is for all its processes. Reads the file each time; keeps errno.
 */
bool vs_meta_is_counted(void);

/*
 * Takes the next step ahead, if the last one is nearly used up: the system may
 * take milliseconds to find a huge page. By one thread, which holds no lock.
 */
void vs_meta_prepare(void);

/* In a forked child: the lock may have been held by a thread that is gone. */
void vs_meta_forked(void);

#endif
