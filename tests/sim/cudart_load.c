/* SPDX-License-Identifier: MIT */
/* How the runtime finds the driver, and which context it uses. */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

struct cudart_driver cudart_driver;

static const struct {
	const char *base;
	int version;
	size_t at;
} needs[] = {
#define CUDART_NEEDS(symbol, base, version)                                    \
	{base, version, offsetof(struct cudart_driver, symbol)},
#include "cudart.def"
#undef CUDART_NEEDS
};

struct device {
	CUcontext primary;   /* NULL: not retained */
	unsigned generation; /* counts resets */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[CUDART_MAX_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t load_error;

static __thread struct {
	int device;
	unsigned generation;
	int is_bound; /* to its device's primary context */
	cudaError_t last;
} thread;

cudaError_t cudart_note(cudaError_t error)
{
	/* Not ready is an answer, not an error to remember. */
	if (error != cudaSuccess && error != cudaErrorNotReady)
		thread.last = error;
	return error;
}

cudaError_t cudart_last(int clear)
{
	cudaError_t error = thread.last;

	if (clear)
		thread.last = cudaSuccess;
	return error;
}

/*
 * Both flag values, as the real one: 2 is the per-thread twin, which no
 * function has before 7.0.
 */
static void *ask(const char *base, int version)
{
	CUdriverProcAddressQueryResult status;
	void *per_thread = NULL, *f;

#ifdef CUDART_PER_THREAD
	version = version < 7000 ? 7000 : version;
#endif
	cudart_driver.get_proc(base, &per_thread, version,
			       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
			       &status);
	if (cudart_driver.get_proc(base, &f, version, 0, &status) !=
	    CUDA_SUCCESS)
		return NULL;
#ifdef CUDART_PER_THREAD
	f = per_thread;
#endif
	return f;
}

static void load(void)
{
	CUdriverProcAddressQueryResult status;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	void *f = NULL;
	unsigned i;

	load_error = cudaErrorInsufficientDriver;
	if (!lib)
		return;
	*(void **)&cudart_driver.get_proc = dlsym(lib, "cuGetProcAddress_v2");
	if (!cudart_driver.get_proc)
		return;
	cudart_driver.get_proc("", &f, 0, 0, &status);
	ask("cuInit", 2000);
	ask("cuGetProcAddress", 11030);
	ask("cuGetProcAddress", 12000);
	for (i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
		f = ask(needs[i].base, needs[i].version);
		if (!f)
			return;
		*(void **)((char *)&cudart_driver + needs[i].at) = f;
	}
	load_error = (cudaError_t)cudart_driver.cuInit(0);
}

cudaError_t cudart_load(void)
{
	pthread_once(&once, load);
	return cudart_note(load_error);
}

int cudart_device(void)
{
	return thread.device;
}

cudaError_t cudart_primary(int device, CUcontext *ctx_out)
{
	struct device *d = &devices[device];
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&mutex);
	if (!d->primary)
		result = cudart_driver.cuDevicePrimaryCtxRetain(&d->primary,
								device);
	*ctx_out = d->primary;
	pthread_mutex_unlock(&mutex);
	return cudart_code(result);
}

static unsigned generation_of(int device)
{
	unsigned generation;

	pthread_mutex_lock(&mutex);
	generation = devices[device].generation;
	pthread_mutex_unlock(&mutex);
	return generation;
}

static cudaError_t bind_device(void)
{
	unsigned generation = generation_of(thread.device);
	CUcontext ctx;
	cudaError_t error = cudart_primary(thread.device, &ctx);

	if (error != cudaSuccess)
		return error;
	error = cudart_code(cudart_driver.cuCtxSetCurrent(ctx));
	if (error != cudaSuccess)
		return error;
	thread.generation = generation;
	thread.is_bound = 1;
	return cudaSuccess;
}

cudaError_t cudart_enter(void)
{
	cudaError_t error = cudart_load();
	CUcontext ctx;

	if (error != cudaSuccess)
		return error;
	error = cudart_code(cudart_driver.cuCtxGetCurrent(&ctx));
	if (error != cudaSuccess)
		return error;
	/* A context that the program itself made current is respected. */
	if (ctx && (!thread.is_bound ||
		    thread.generation == generation_of(thread.device)))
		return cudaSuccess;
	return bind_device();
}

cudaError_t cudart_set_device(int device)
{
	cudaError_t error = cudart_load();
	int count;

	if (error != cudaSuccess)
		return error;
	error = cudart_code(cudart_driver.cuDeviceGetCount(&count));
	if (error != cudaSuccess)
		return error;
	if (device < 0 || device >= count || device >= CUDART_MAX_DEVICES)
		return cudart_note(cudaErrorInvalidDevice);
	thread.device = device;
	return bind_device();
}

cudaError_t cudart_reset_device(void)
{
	cudaError_t error = cudart_load();
	struct device *d = &devices[thread.device];

	if (error != cudaSuccess)
		return error;
	pthread_mutex_lock(&mutex);
	error = cudart_code(
		cudart_driver.cuDevicePrimaryCtxReset_v2(thread.device));
	if (d->primary)
		cudart_driver.cuDevicePrimaryCtxRelease_v2(thread.device);
	d->primary = NULL;
	d->generation++;
	pthread_mutex_unlock(&mutex);
	return error;
}
