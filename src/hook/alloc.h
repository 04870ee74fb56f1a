/* SPDX-License-Identifier: MIT
 *
 * alloc: what other hooks tell the calls that the pool serves.
 */
#ifndef VS_HOOK_ALLOC_H
#define VS_HOOK_ALLOC_H

/*
 * From here on each allocation and free is looked at, until none needs it. From
 * any thread, whatever lock it holds.
 */
void vs_alloc_watch(void);

#endif
