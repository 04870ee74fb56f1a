/* SPDX-License-Identifier: MIT */
#include "base/stream.h"

struct vs_stream vs_stream;
