/* SPDX-License-Identifier: MIT
 *
 * probe: one line that says which GPUs and driver this machine has; 77 if none.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int none(const char *why)
{
	printf("%s\n", why);
	return 77;
}

/* The first word of a line that is digits and dots: "580.95.05". */
static void print_module_version(void)
{
	FILE *f = fopen("/proc/driver/nvidia/version", "r");
	char line[256], *word, *rest = NULL;

	if (!f)
		return;
	if (fgets(line, sizeof(line), f)) {
		word = strtok_r(line, " ", &rest);
		while (word && word[strspn(word, "0123456789.")])
			word = strtok_r(NULL, " ", &rest);
		if (word)
			printf(", driver %s", word);
	}
	fclose(f);
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
	print_module_version();
	printf("\n");
	return 0;
}
