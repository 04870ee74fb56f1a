/* SPDX-License-Identifier: MIT */
/* How programs find driver functions, and what errors are called. */
#include <string.h>

#include "sim_base.h"
#include "sim_call.h"

/*
 * The newest ABI of base that was there at version; per-thread twins only on
 * request, and then in preference to the legacy one of the same ABI.
 */
static const struct sim_function *find(const char *base, int version,
				       bool per_thread, bool *known_out)
{
	const struct sim_function *best = NULL, *f;

	*known_out = false;
	for (f = sim_functions; f < sim_functions + SIM_N_FUNCTIONS; f++) {
		if (strcmp(f->base, base) || f->since > sim_config.version)
			continue;
		*known_out = true;
		if (f->since > version)
			continue;
		if ((f->flags & SIM_PER_THREAD) && !per_thread)
			continue;
		if (!best || f->since >= best->since ||
		    (f->flags & SIM_PER_THREAD))
			best = f;
	}
	return best;
}

CUresult sim_cuGetProcAddress_v2(const char *symbol, void **pfn,
				 int cudaVersion, cuuint64_t flags,
				 CUdriverProcAddressQueryResult *symbolStatus)
{
	const cuuint64_t known_flags =
		CU_GET_PROC_ADDRESS_LEGACY_STREAM |
		CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	CUdriverProcAddressQueryResult status;
	const struct sim_function *f;
	bool known;

	if (!symbol || !pfn || (flags & ~known_flags))
		return CUDA_ERROR_INVALID_VALUE;
	if (cudaVersion > sim_config.version) {
		*pfn = NULL;
		if (symbolStatus)
			*symbolStatus =
				CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		return CUDA_ERROR_INVALID_VALUE;
	}
	f = find(symbol, cudaVersion,
		 flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
	if (f)
		status = CU_GET_PROC_ADDRESS_SUCCESS;
	else if (known)
		status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	else
		status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	*pfn = f ? (void *)f->address : NULL;
	if (symbolStatus)
		*symbolStatus = status;
	return f || symbolStatus ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Without a status the older ABI has only the code to tell a miss. */
CUresult sim_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion,
			      cuuint64_t flags)
{
	return sim_cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

/* No private tables: the real cudart refuses, so tests use their own. */
CUresult sim_cuGetExportTable(const void **ppExportTable,
			      const CUuuid *pExportTableId)
{
	if (!ppExportTable || !pExportTableId)
		return CUDA_ERROR_INVALID_VALUE;
	*ppExportTable = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
#define SIM_ERROR(code, text) {code, #code, text},
#include "sim_error.def"
#undef SIM_ERROR
};

CUresult sim_cuGetErrorName(CUresult error, const char **pStr)
{
	unsigned i;

	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	*pStr = NULL;
	for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error)
			*pStr = errors[i].name;
	return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGetErrorString(CUresult error, const char **pStr)
{
	unsigned i;

	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	*pStr = NULL;
	for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error)
			*pStr = errors[i].text;
	return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
