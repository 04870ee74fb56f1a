/* SPDX-License-Identifier: MIT */
#include "base/api.h"

#include <stddef.h>

static const char *const names[VS_API_COUNT] = {
#define API(symbol, base, since, flags) #symbol,
#include "api.def"
};

const char *vs_api_name(enum vs_api api)
{
	return names[api];
}
