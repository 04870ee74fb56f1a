/* SPDX-License-Identifier: MIT
 *
 * heap_check: walks all that the pool knows of its memory and compares.
 */
#ifndef VS_TEST_HEAP_CHECK_H
#define VS_TEST_HEAP_CHECK_H

struct vs_pool;

/*
 * Ends the program with a line that names what does not agree. No other thread
 * may use the pool.
 */
void heap_check(struct vs_pool *pool);

#endif
