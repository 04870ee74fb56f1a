/* SPDX-License-Identifier: MIT
 *
 * probe: one line that says which GPUs and driver this machine has; 77 if none.
 */
#include <dlfcn.h>
#include <stdio.h>

static int none(const char *why)
{
	printf("%s\n", why);
	return 77;
}

int main(void)
{
	int (*init)(unsigned), (*version)(int *), (*count)(int *);
	int (*name)(char *, int, int);
	char text[256];
	int n = 0, v = 0, result;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);

	if (!lib)
		return none("no libcuda.so.1");
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&version = dlsym(lib, "cuDriverGetVersion");
	*(void **)&count = dlsym(lib, "cuDeviceGetCount");
	*(void **)&name = dlsym(lib, "cuDeviceGetName");
	if (!init || !version || !count || !name)
		return none("libcuda.so.1 is not a driver");
	result = init(0);
	if (result || count(&n) || n == 0) {
		printf("no CUDA device (cuInit %d)\n", result);
		return 77;
	}
	version(&v);
	name(text, sizeof(text), 0);
	printf("%d x %s, CUDA %d.%d", n, text, v / 1000, v % 1000 / 10);
	/* the kernel module's own version */
	FILE *f = fopen("/proc/driver/nvidia/version", "r");

	if (f && fgets(text, sizeof(text), f)) {
		char driver[64];

		if (sscanf(text, "%*[^0-9]%63[0-9.]", driver) == 1)
			printf(", driver %s", driver);
	}
	printf("\n");
	return 0;
}
