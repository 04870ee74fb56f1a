/* SPDX-License-Identifier: MIT */
/* The exported driver functions, made from the table. */
#include "sim_call.h"

#define SIM_API(symbol, base, since, flags, body, params, args)                \
	__attribute__((visibility("default"))) CUresult CUDAAPI symbol params  \
	{                                                                      \
		CUresult result = sim_call_enter(SIM_##symbol);                \
                                                                               \
		if (result == CUDA_SUCCESS)                                    \
			result = sim_##body args;                              \
		return sim_call_leave(SIM_##symbol, result);                   \
	}
#include "sim_api.def"
#undef SIM_API

const struct sim_function sim_functions[SIM_N_FUNCTIONS] = {
#define SIM_API(symbol, base, since, flags, body, params, args)                \
	{#symbol, base, since, flags, (void (*)(void))symbol},
#include "sim_api.def"
#undef SIM_API
};
