/* SPDX-License-Identifier: MIT
 *
 * hot: what every allocation, free and launch reads before all else.
 *
 * A program that works empties the caches between two calls, so a call costs
 * the lines that it touches (HACKING.md). These were one each. Here they are
 * side by side; each is still its room's own: nobody else writes it, hardly
 * ever after the start, and who reads it goes by the rules of that room.
 *
 * They have whole pages to themselves, which the kernel clears in a child (Note
 * [Children] in hook/gate.c): zero must be right for each at the start.
 */
#ifndef VS_BASE_HOT_H
#define VS_BASE_HOT_H

#include <stdatomic.h>
#include <stdbool.h>

struct vs_pool;

enum { VS_MOST_POOLS = 64 };

/* The largest page that the kernel may be built with. */
#ifdef __aarch64__
#define VS_HOT_ALIGN 65536
#else
#define VS_HOT_ALIGN 4096
#endif

struct vs_hot {
	_Alignas(VS_HOT_ALIGN) _Atomic bool is_open; /* hook/gate */
	_Atomic bool is_known;			     /* hook/gate */
	_Atomic bool is_plain;			     /* hook/alloc */
	_Atomic bool is_dozing;			     /* report/service */
	_Atomic int n_pools; /* pool/pool; and the next */
	struct vs_pool *pools[VS_MOST_POOLS];
};

extern struct vs_hot vs_hot;

#endif
