/* SPDX-License-Identifier: MIT
 *
 * victim_small: looks for a function of the driver in a thread that has the
 * smallest stack there is, and little of it left.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include "victim.h"

static void *find(void *library)
{
	volatile char used[2048];

	memset((char *)used, 1, sizeof(used));
	CHECK(dlsym(library, "cuMemAlloc_v2"));
	CHECK(used[77] == 1);
	return library;
}

int main(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	pthread_attr_t small;
	pthread_t thread;

	CHECK(library);
	CHECK(!pthread_attr_init(&small));
	CHECK(!pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN));
	CHECK(!pthread_create(&thread, &small, find, library));
	CHECK(!pthread_join(thread, NULL));
	printf("found\n");
	return 0;
}
