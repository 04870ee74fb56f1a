/* SPDX-License-Identifier: MIT
 *
 * victim_cudarts COPY...: each copy of cudart is opened by itself, all serve at
 * the same time, memory of one is freed by the next, and they are closed one
 * after the other, with memory live.
 */
#include "victim.h"

enum { MAX_COPIES = 8 };

struct runtime {
	void *handle;
	int (*malloc)(void **, size_t);
	int (*free)(void *);
	int (*set)(void *, int, size_t);
	int (*copy)(void *, const void *, size_t, int);
	void *p[3];
};

static const size_t sizes[3] = {1000, 500 * KiB, 5 * MiB};

static void *look(void *handle, const char *name)
{
	void *found = dlsym(handle, name);

	CHECK(found);
	return found;
}

static struct runtime load(const char *path)
{
	struct runtime r = {.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};

	CHECK(r.handle);
	*(void **)&r.malloc = look(r.handle, "cudaMalloc");
	*(void **)&r.free = look(r.handle, "cudaFree");
	*(void **)&r.set = look(r.handle, "cudaMemset");
	*(void **)&r.copy = look(r.handle, "cudaMemcpy");
	return r;
}

static bool is_filled(struct runtime *r, const void *p, size_t size, int byte)
{
	unsigned char *host = malloc(size);
	bool is_good = host;

	CHECK(host);
	TRY(r->copy(host, p, size, 2));
	for (size_t i = 0; i < size && is_good; i++)
		is_good = host[i] == (unsigned char)byte;
	free(host);
	return is_good;
}

int main(int argc, char **argv)
{
	struct runtime r[MAX_COPIES];
	int n = argc - 1, n_good = 0;

	CHECK(n > 1 && n <= MAX_COPIES);
	for (int i = 0; i < n; i++)
		r[i] = load(argv[i + 1]);
	for (int k = 0; k < 3; k++) {
		for (int i = 0; i < n; i++) {
			TRY(r[i].malloc(&r[i].p[k], sizes[k]));
			TRY(r[i].set(r[i].p[k], i + k, sizes[k]));
		}
	}
	for (int i = 0; i + 1 < n; i++) {
		for (int k = 0; k < 3; k++)
			n_good += is_filled(&r[i + 1], r[i].p[k], sizes[k],
					    i + k);
		TRY(r[i + 1].free(r[i].p[0]));
		TRY(dlclose(r[i].handle)); /* p[1] and p[2] stay */
	}
	for (int i = 0; i + 1 < n; i++) {
		n_good += is_filled(&r[n - 1], r[i].p[2], sizes[2], i + 2);
		TRY(r[n - 1].free(r[i].p[1]));
		TRY(r[n - 1].free(r[i].p[2]));
	}
	printf("%d of %d good\n", n_good, 4 * (n - 1));
	return 0;
}
