/* SPDX-License-Identifier: MIT
 *
 * uthash_meta: uthash over the shim's own memory. By default uthash takes
 * memory from malloc and ends the process when there is none: both forbidden
 * here. Include this, never <uthash.h>.
 */
#ifndef VS_BASE_UTHASH_META_H
#define VS_BASE_UTHASH_META_H

#include "base/meta.h"

#define HASH_NONFATAL_OOM 1
#define uthash_malloc(size) vs_meta_alloc(size)
#define uthash_free(pointer, size) vs_meta_free(pointer, size)
#include <uthash.h>

#endif
