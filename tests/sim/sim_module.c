/* SPDX-License-Identifier: MIT */
#include "sim_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_base.h"
#include "sim_context.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_kernel.h"

struct module {
	uint64_t handle;
	struct sim_context *ctx; /* NULL: a library */
	char *ptx;		 /* NULL: a binary image, holds all */
	uint64_t bytes;		 /* of its variables, from the device */
};

struct function {
	uint64_t handle;
	struct module *module;
	const struct sim_kernel *kernel;
};

static void free_function_of(void *object, void *arg)
{
	struct function *f = object;

	if (f->module != arg)
		return;
	sim_handle_free(f->handle);
	free(f);
}

static void module_free(struct module *m)
{
	sim_handle_each(SIM_FUNCTION, free_function_of, m);
	sim_handle_free(m->handle);
	if (m->bytes)
		sim_device_give(m->ctx->device, m->bytes);
	free(m->ptx);
	free(m);
}

static void free_module_of(void *object, void *arg)
{
	struct module *m = object;

	if (m->ctx == arg)
		module_free(m);
}

void sim_module_free_context(struct sim_context *ctx)
{
	sim_handle_each(SIM_MODULE, free_module_of, ctx);
}

void sim_module_reset(void)
{
	sim_module_free_context(NULL);
}

static bool is_text(const unsigned char *image)
{
	return (image[0] >= ' ' && image[0] < 0x7f) || image[0] == '\n' ||
	       image[0] == '\t' || image[0] == '\r';
}

/* Of arrays in PTX: ".global .align 8 .b8 name[bytes]". */
static uint64_t variable_bytes(const char *ptx)
{
	const char *at = ptx, *open;
	uint64_t bytes = 0;

	while (at && (at = strstr(at, ".global .align"))) {
		open = strpbrk(at, "[;");
		if (open && *open == '[')
			bytes += strtoull(open + 1, NULL, 10);
		at = open;
	}
	return bytes;
}

/* Of a library nothing is on a device before somebody asks for it. */
static CUresult load(struct sim_context *ctx, const void *image,
		     uint64_t *handle_out)
{
	uint64_t bytes = 0;
	struct module *m;

	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_text(image) && !strstr(image, ".version"))
		return CUDA_ERROR_INVALID_IMAGE;
	if (is_text(image) && ctx)
		bytes = variable_bytes(image);
	if (bytes && !sim_device_take(ctx->device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = sim_zalloc(sizeof(*m));
	m->ctx = ctx;
	m->bytes = bytes;
	m->ptx = is_text(image) ? strdup(image) : NULL;
	m->handle = sim_handle_new(SIM_MODULE, m);
	*handle_out = m->handle;
	return CUDA_SUCCESS;
}

/* A name is there if PTX declares it as an entry; a binary is believed. */
static bool declares(const struct module *m, const char *name)
{
	const size_t length = strlen(name);
	const char *at = m->ptx;

	if (!at)
		return true;
	while ((at = strstr(at, ".entry"))) {
		at += strlen(".entry");
		at += strspn(at, " \t\r\n");
		if (strncmp(at, name, length) == 0 &&
		    strchr(" \t\r\n(", at[length]))
			return true;
	}
	return false;
}

static CUresult get_function(struct module *m, const char *name,
			     uint64_t *handle_out)
{
	struct function *f;

	if (!declares(m, name))
		return CUDA_ERROR_NOT_FOUND;
	f = sim_zalloc(sizeof(*f));
	f->module = m;
	f->kernel = sim_kernel_find(name);
	f->handle = sim_handle_new(SIM_FUNCTION, f);
	*handle_out = f->handle;
	return CUDA_SUCCESS;
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuModuleLoadData(CUmodule *module, const void *image)
{
	uint64_t handle;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (module)
		result = load(sim_thread.current, image, &handle);
	if (result == CUDA_SUCCESS)
		*module = SIM_AS(CUmodule, handle);
	return result;
}

/*
 * The compiler says something, and how much it said is in the place of the
 * buffer's size then, also where the load is out of memory (H100).
 */
static void write_log(unsigned n, const CUjit_option *options, void **values)
{
	static const char text[] = "simulated: nothing to compile";
	char *log = NULL;
	size_t size = 0, length;

	for (unsigned i = 0; i < n; i++)
		if (options[i] == CU_JIT_INFO_LOG_BUFFER)
			log = values[i];
	for (unsigned i = 0; i < n; i++) {
		if (options[i] != CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
			continue;
		size = (size_t)values[i];
		length = size < sizeof(text) ? size : sizeof(text) - 1;
		values[i] = (void *)length;
		if (log)
			snprintf(log, size, "%s", text);
	}
}

CUresult sim_cuModuleLoadDataEx(CUmodule *module, const void *image,
				unsigned int numOptions, CUjit_option *options,
				void **optionValues)
{
	CUresult result;

	if (numOptions && (!options || !optionValues))
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_cuModuleLoadData(module, image);
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
		write_log(numOptions, options, optionValues);
	return result;
}

CUresult sim_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return sim_cuModuleLoadData(module, fatCubin);
}

static char *read_file(const char *name)
{
	FILE *file = name ? fopen(name, "rb") : NULL;
	char *text = NULL;
	size_t size = 0;

	if (!file)
		return NULL;
	if (getdelim(&text, &size, '\0', file) < 0) {
		free(text);
		text = NULL;
	}
	fclose(file);
	return text;
}

CUresult sim_cuModuleLoad(CUmodule *module, const char *fname)
{
	char *text = read_file(fname);
	CUresult result;

	if (!text)
		return CUDA_ERROR_FILE_NOT_FOUND;
	result = sim_cuModuleLoadData(module, text);
	free(text);
	return result;
}

CUresult sim_cuModuleUnload(CUmodule hmod)
{
	struct module *m = sim_handle_get(SIM_MODULE, SIM_OF(hmod));

	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	module_free(m);
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod,
				 const char *name)
{
	struct module *m = sim_handle_get(SIM_MODULE, SIM_OF(hmod));
	uint64_t handle;
	CUresult result;

	if (!hfunc || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	result = get_function(m, name, &handle);
	if (result == CUDA_SUCCESS)
		*hfunc = SIM_AS(CUfunction, handle);
	return result;
}

/* No module here has global variables. */
CUresult sim_cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes,
				  CUmodule hmod, const char *name)
{
	(void)dptr;
	(void)bytes;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_get(SIM_MODULE, SIM_OF(hmod)))
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

CUresult sim_cuLibraryLoadData(CUlibrary *library, const void *code,
			       CUjit_option *jitOptions,
			       void **jitOptionsValues,
			       unsigned int numJitOptions,
			       CUlibraryOption *libraryOptions,
			       void **libraryOptionValues,
			       unsigned int numLibraryOptions)
{
	uint64_t handle;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	(void)jitOptions;
	(void)jitOptionsValues;
	(void)numJitOptions;
	(void)libraryOptions;
	(void)libraryOptionValues;
	(void)numLibraryOptions;
	if (library)
		result = load(NULL, code, &handle);
	if (result == CUDA_SUCCESS)
		*library = SIM_AS(CUlibrary, handle);
	return result;
}

CUresult sim_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
				   CUjit_option *jitOptions,
				   void **jitOptionsValues,
				   unsigned int numJitOptions,
				   CUlibraryOption *libraryOptions,
				   void **libraryOptionValues,
				   unsigned int numLibraryOptions)
{
	char *text = read_file(fileName);
	CUresult result;

	if (!text)
		return CUDA_ERROR_FILE_NOT_FOUND;
	result = sim_cuLibraryLoadData(
		library, text, jitOptions, jitOptionsValues, numJitOptions,
		libraryOptions, libraryOptionValues, numLibraryOptions);
	free(text);
	return result;
}

CUresult sim_cuLibraryUnload(CUlibrary library)
{
	return sim_cuModuleUnload(SIM_AS(CUmodule, SIM_OF(library)));
}

CUresult sim_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library,
				const char *name)
{
	CUfunction function;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (pKernel)
		result = sim_cuModuleGetFunction(
			&function, SIM_AS(CUmodule, SIM_OF(library)), name);
	if (result == CUDA_SUCCESS)
		*pKernel = SIM_AS(CUkernel, SIM_OF(function));
	return result;
}

CUresult sim_cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	if (!pMod)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_get(SIM_MODULE, SIM_OF(library)))
		return CUDA_ERROR_INVALID_HANDLE;
	*pMod = SIM_AS(CUmodule, SIM_OF(library));
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	if (!pFunc)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_get(SIM_FUNCTION, SIM_OF(kernel)))
		return CUDA_ERROR_INVALID_HANDLE;
	*pFunc = SIM_AS(CUfunction, SIM_OF(kernel));
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelSetAttribute(CUfunction_attribute attrib, int val,
				  CUkernel kernel, CUdevice dev)
{
	(void)attrib;
	(void)val;
	if (!sim_handle_get(SIM_FUNCTION, SIM_OF(kernel)))
		return CUDA_ERROR_INVALID_HANDLE;
	return sim_device_valid(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex,
				  size_t *paramOffset, size_t *paramSize)
{
	struct function *f = sim_handle_get(SIM_FUNCTION, SIM_OF(kernel));

	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	return paramOffset && sim_kernel_param(f->kernel, paramIndex,
					       paramOffset, paramSize)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncGetAttribute(int *pi, CUfunction_attribute attrib,
				CUfunction hfunc)
{
	if (!pi)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_handle_get(SIM_FUNCTION, SIM_OF(hfunc)))
		return CUDA_ERROR_INVALID_HANDLE;
	*pi = attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib,
				int value)
{
	(void)attrib;
	(void)value;
	if (!sim_handle_get(SIM_FUNCTION, SIM_OF(hfunc)))
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_SUCCESS;
}

/* ---- launches -------------------------------------------------------- */

CUresult sim_kernel_prepare(uint64_t function, void **params, void **extra,
			    const struct sim_context *ctx, struct sim_op *op)
{
	struct function *f = sim_handle_get(SIM_FUNCTION, function);

	*op = (struct sim_op){.kind = SIM_OP_KERNEL, .call = sim_thread.call};
	if (!f || (f->module->ctx && f->module->ctx != ctx &&
		   f->module->ctx != ctx->parent))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!sim_kernel_bind(f->kernel, params, extra, op))
		return CUDA_ERROR_INVALID_VALUE;
	op->device = ctx->device;
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction hfunc, CUstream hStream, bool has_size,
		       void **params, void **extra)
{
	struct sim_stream *stream;
	struct sim_op op;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_kernel_prepare(SIM_OF(hfunc), params, extra,
					    stream->ctx, &op);
	if (result != CUDA_SUCCESS)
		return result;
	if (!has_size)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_context_take_heap(stream->ctx))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return sim_submit(stream, &op, 1);
}

CUresult sim_cuLaunchKernel(CUfunction f, unsigned int gridDimX,
			    unsigned int gridDimY, unsigned int gridDimZ,
			    unsigned int blockDimX, unsigned int blockDimY,
			    unsigned int blockDimZ, unsigned int sharedMemBytes,
			    CUstream hStream, void **kernelParams, void **extra)
{
	(void)sharedMemBytes;
	return launch(f, hStream,
		      gridDimX && gridDimY && gridDimZ && blockDimX &&
			      blockDimY && blockDimZ &&
			      blockDimX * blockDimY * blockDimZ <= 1024,
		      kernelParams, extra);
}

CUresult sim_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f,
			      void **kernelParams, void **extra)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuLaunchKernel(
		f, config->gridDimX, config->gridDimY, config->gridDimZ,
		config->blockDimX, config->blockDimY, config->blockDimZ,
		config->sharedMemBytes, config->hStream, kernelParams, extra);
}

static void run_host(const struct sim_op *op)
{
	op->u.host.fn(op->u.host.data);
}

CUresult sim_cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	struct sim_op op = {.name = "host function",
			    .call = sim_thread.call,
			    .host_function = true,
			    .run = run_host};
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	op.u.host.fn = fn;
	op.u.host.data = userData;
	return sim_submit(stream, &op, 1);
}

static void run_callback(const struct sim_op *op)
{
	op->u.callback.fn(op->u.callback.stream, CUDA_SUCCESS,
			  op->u.callback.data);
}

CUresult sim_cuStreamAddCallback(CUstream hStream, CUstreamCallback callback,
				 void *userData, unsigned int flags)
{
	struct sim_op op = {.name = "callback",
			    .call = sim_thread.call,
			    .host_function = true,
			    .run = run_callback,
			    .u.callback = {callback, hStream, userData}};
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_submit(stream, &op, 1);
}
