/* SPDX-License-Identifier: MIT */
/*
 * What a driver tells of a kernel. Each takes a kernel of a library as well as
 * a function (cuda.h); a real driver loads its code for that.
 */
#include "sim_call.h"
#include "sim_handle.h"

#define SIM_BLOCKS 4	  /* on a multiprocessor */
#define SIM_THREADS 256	  /* in a block */
#define SIM_UNITS 132	  /* multiprocessors */
#define SIM_SHARED 49152u /* bytes */

static CUresult tell(const void *out, CUfunction func)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_handle_get(SIM_FUNCTION, SIM_OF(func))
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks,
							 CUfunction func,
							 int blockSize,
							 size_t dynamicSMemSize)
{
	CUresult result = tell(numBlocks, func);

	(void)dynamicSMemSize;
	if (result == CUDA_SUCCESS && blockSize < 1)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*numBlocks = SIM_BLOCKS;
	return result;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
	int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize,
	unsigned int flags)
{
	(void)flags;
	return sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(
		numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult sim_cuOccupancyMaxPotentialBlockSize(
	int *minGridSize, int *blockSize, CUfunction func,
	CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
	int blockSizeLimit)
{
	CUresult result = tell(minGridSize, func);

	(void)dynamicSMemSize;
	(void)blockSizeLimit;
	if (result == CUDA_SUCCESS && !blockSize)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	if (blockSizeToDynamicSMemSize)
		blockSizeToDynamicSMemSize(SIM_THREADS);
	*minGridSize = SIM_UNITS * SIM_BLOCKS;
	*blockSize = SIM_THREADS;
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxPotentialBlockSizeWithFlags(
	int *minGridSize, int *blockSize, CUfunction func,
	CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
	int blockSizeLimit, unsigned int flags)
{
	(void)flags;
	return sim_cuOccupancyMaxPotentialBlockSize(
		minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
		dynamicSMemSize, blockSizeLimit);
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize,
						     CUfunction func,
						     int numBlocks,
						     int blockSize)
{
	CUresult result = tell(dynamicSmemSize, func);

	(void)blockSize;
	if (result == CUDA_SUCCESS && numBlocks < 1)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*dynamicSmemSize = SIM_SHARED / (unsigned)numBlocks;
	return result;
}

CUresult sim_cuOccupancyMaxPotentialClusterSize(int *clusterSize,
						CUfunction func,
						const CUlaunchConfig *config)
{
	CUresult result =
		config ? tell(clusterSize, func) : CUDA_ERROR_INVALID_VALUE;

	if (result == CUDA_SUCCESS)
		*clusterSize = 8;
	return result;
}

CUresult sim_cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
					  const CUlaunchConfig *config)
{
	CUresult result =
		config ? tell(numClusters, func) : CUDA_ERROR_INVALID_VALUE;

	if (result == CUDA_SUCCESS)
		*numClusters = SIM_UNITS / 8;
	return result;
}
