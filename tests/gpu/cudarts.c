/* SPDX-License-Identifier: MIT
 *
 * cudarts LIBCUDART...: several CUDA runtimes side by side in one process, each
 * with calls of its own, and memory of one used and freed by the next.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX 8
#define SIZE(i) ((size_t)1000 << (i) % 14)

struct runtime {
	int (*version)(int *);
	int (*malloc)(void **, size_t);
	int (*free)(void *);
	int (*memset)(void *, int, size_t);
	int (*memcpy)(void *, const void *, size_t, int);
	int (*synchronize)(void);
	int (*info)(size_t *, size_t *);
};

static int n_failed;

static void try(int result, const char *what)
{
	if (result == 0)
		return;
	printf("%s: error %d\n", what, result);
	n_failed++;
}

#define TRY(call) try(call, #call)

static void *find(void *lib, const char *name)
{
	void *p = dlsym(lib, name);

	if (!p) {
		printf("no %s\n", name);
		exit(1);
	}
	return p;
}

static struct runtime load(const char *path)
{
	struct runtime r;
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		printf("%s\n", dlerror());
		exit(1);
	}
	*(void **)&r.version = find(lib, "cudaRuntimeGetVersion");
	*(void **)&r.malloc = find(lib, "cudaMalloc");
	*(void **)&r.free = find(lib, "cudaFree");
	*(void **)&r.memset = find(lib, "cudaMemset");
	*(void **)&r.memcpy = find(lib, "cudaMemcpy");
	*(void **)&r.synchronize = find(lib, "cudaDeviceSynchronize");
	*(void **)&r.info = find(lib, "cudaMemGetInfo");
	return r;
}

/* Memory of `from`, set by `from`, read by `to`, freed by `to`. */
static void pass(const struct runtime *from, const struct runtime *to)
{
	static unsigned char host[1000 << 13];

	for (int i = 0; i < 100; i++) {
		void *p = NULL, *q = NULL;
		size_t size = SIZE(i);

		TRY(from->malloc(&p, size));
		TRY(from->memset(p, i, size));
		TRY(to->malloc(&q, size));
		TRY(to->memcpy(q, p, size, 4));
		memset(host, 0xff, size);
		TRY(from->memcpy(host, q, size, 4));
		for (size_t at = 0; at < size; at++)
			if (host[at] != (unsigned char)i) {
				printf("%zu bytes: different\n", size);
				n_failed++;
				break;
			}
		TRY(to->free(p));
		TRY(from->free(q));
	}
}

int main(int argc, char **argv)
{
	struct runtime all[MAX];
	int n = argc - 1 < MAX ? argc - 1 : MAX;

	for (int i = 0; i < n; i++)
		all[i] = load(argv[i + 1]);
	for (int i = 0; i < n; i++) {
		int version = 0, twice[2];
		void *p = NULL;
		size_t available = 0, total = 0;

		TRY(all[i].version(&version));
		for (int j = 0; j < n; j++)
			pass(&all[i], &all[j]);
		TRY(all[i].malloc(&p, 1000));
		twice[0] = all[i].free(p);
		twice[1] = all[i].free(p);
		TRY(all[i].info(&available, &total));
		printf("runtime %d.%d: free %d, twice %d, total %zu\n",
		       version / 1000, version % 1000 / 10, twice[0], twice[1],
		       total);
	}
	for (int i = 0; i < n; i++)
		TRY(all[i].synchronize());
	printf("%d failed\n", n_failed);
	return n_failed > 0;
}
