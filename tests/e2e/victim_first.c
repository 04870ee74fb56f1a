/* SPDX-License-Identifier: MIT
 *
 * victim_first: one thread looks up a function of the driver in the middle of
 * another's first look-up, as the runtimes of two libraries do. The shim asks
 * for dlerror at the end of that, and the program has one of its own.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "victim_link.h"

typedef CUresult (*free_fn)(CUdeviceptr);

static void *driver;
static free_fn give_back;

static void *look(void *unused)
{
	*(void **)&give_back = dlsym(driver, "cuMemFree_v2");
	return unused;
}

char *dlerror(void)
{
	pthread_t thread;

	if (driver && !give_back && !pthread_create(&thread, NULL, look, NULL))
		pthread_join(thread, NULL);
	return NULL;
}

int main(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	CUdeviceptr p;

	CHECK(library);
	driver = library;
	CHECK(dlsym(library, "cuMemAlloc_v2"));
	if (!give_back)
		look(NULL);
	victim_start(0);
	p = victim_alloc(MiB);
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(give_back(p));
	printf("given back\n");
	return 0;
}
