/* SPDX-License-Identifier: MIT
 *
 * api: one number for each intercepted driver function, from api.def.
 */
#ifndef VS_BASE_API_H
#define VS_BASE_API_H

#include "base/newer.h"

enum vs_api {
#define API(symbol, base, since, flags) VS_API_##symbol,
#include "api.def"
	VS_API_COUNT
};

/* "cuMemAlloc_v2" of row `api`. */
const char *vs_api_name(enum vs_api api);

#endif
