/* SPDX-License-Identifier: MIT */
/*
 * A thin CUDA runtime for tests: the real one refuses a simulated driver.  It
 * finds the driver the way the real one does and keeps the same state: primary
 * contexts made when needed, one last error for each thread.  Every copy of it
 * (static or shared) has its own.  One is built for programs whose NULL stream
 * is the thread's own (CUDART_PER_THREAD): cuda_runtime_api.h then renames what
 * differs, here as in the program.
 */
#ifndef CUDART_H
#define CUDART_H

/* The plain names: neither all ABI versions nor the per-thread stream. */
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#ifdef CUDART_PER_THREAD
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#endif
#include <cuda_runtime_api.h>

#define CUDART_MAX_DEVICES 64

struct cudart_driver {
#define CUDART_NEEDS(symbol, base, version) __typeof__(symbol) *symbol;
#include "cudart.def"
#undef CUDART_NEEDS
	__typeof__(cuGetProcAddress_v2) *get_proc;
};

extern struct cudart_driver cudart_driver;

/* The driver is loaded and initialized; else why not. */
cudaError_t cudart_load(void);
/* And the calling thread has a live context. */
cudaError_t cudart_enter(void);
/* The thread's device, by cudaSetDevice. */
int cudart_device(void);
cudaError_t cudart_set_device(int device);
cudaError_t cudart_reset_device(void);
/* A primary context that this runtime retains. */
cudaError_t cudart_primary(int device, CUcontext *ctx_out);

/* Remember an error for cudaGetLastError; returns it. */
cudaError_t cudart_note(cudaError_t error);
cudaError_t cudart_last(int clear);

/* The runtime's codes have the driver's values. */
static inline cudaError_t cudart_code(CUresult result)
{
	return cudart_note((cudaError_t)result);
}

#endif
