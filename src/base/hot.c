/* SPDX-License-Identifier: MIT */
#include "base/hot.h"

struct vs_hot vs_hot;
