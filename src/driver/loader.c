/* SPDX-License-Identifier: MIT */
#include "driver/loader.h"

#include <string.h>

/* A version index with this bit is not the symbol's default version. */
#define VERSION_HIDDEN 0x8000

void *(*vs_loader_dlsym)(void *handle, const char *name);
void *(*vs_loader_dlvsym)(void *handle, const char *name, const char *version);

/* An object's tables for looking up names. */
struct tables {
	const ElfW(Sym) * symbols;
	const char *strings;
	const ElfW(Half) * versions; /* NULL: no versions */
	const uint32_t *gnu_hash;
	const uint32_t *hash;
};

/* The loader has relocated most objects' dynamic sections, but not all. */
static const void *pointer(const struct vs_image *image, ElfW(Addr) value)
{
	return (const void *)(value < image->bias ? value + image->bias
						  : value);
}

static bool read_tables(const struct vs_image *image, struct tables *t)
{
	memset(t, 0, sizeof(*t));
	if (!image->dynamic)
		return false;
	for (const ElfW(Dyn) *d = image->dynamic; d->d_tag != DT_NULL; d++) {
		const void *p = pointer(image, d->d_un.d_ptr);

		switch (d->d_tag) {
		case DT_SYMTAB:
			t->symbols = p;
			break;
		case DT_STRTAB:
			t->strings = p;
			break;
		case DT_VERSYM:
			t->versions = p;
			break;
		case DT_GNU_HASH:
			t->gnu_hash = p;
			break;
		case DT_HASH:
			t->hash = p;
			break;
		}
	}
	return t->symbols && t->strings && (t->gnu_hash || t->hash);
}

static bool is_wanted(const struct tables *t, uint32_t i, const char *name)
{
	const ElfW(Sym) *s = &t->symbols[i];
	unsigned char type = ELF64_ST_TYPE(s->st_info);

	return s->st_shndx != SHN_UNDEF && s->st_value != 0 &&
	       (type == STT_FUNC || type == STT_NOTYPE) &&
	       ELF64_ST_BIND(s->st_info) != STB_LOCAL &&
	       !(t->versions && (t->versions[i] & VERSION_HIDDEN)) &&
	       !strcmp(t->strings + s->st_name, name);
}

static uint32_t find_gnu(const struct tables *t, const char *name)
{
	uint32_t n_buckets = t->gnu_hash[0], first = t->gnu_hash[1];
	const uint32_t *buckets =
		t->gnu_hash + 4 +
		t->gnu_hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	const uint32_t *chains = buckets + n_buckets;
	uint32_t h = 5381, i;

	for (const char *c = name; *c; c++)
		h = h * 33 + (unsigned char)*c;
	i = n_buckets ? buckets[h % n_buckets] : 0;
	if (i < first)
		return 0;
	for (;; i++) {
		uint32_t link = chains[i - first];

		if ((link | 1) == (h | 1) && is_wanted(t, i, name))
			return i;
		if (link & 1) /* the end of the chain */
			return 0;
	}
}

static uint32_t find_sysv(const struct tables *t, const char *name)
{
	uint32_t n_buckets = t->hash[0];
	const uint32_t *buckets = t->hash + 2, *chains = buckets + n_buckets;
	uint32_t h = 0;

	for (const char *c = name; *c; c++) {
		h = (h << 4) + (unsigned char)*c;
		h = (h ^ (h >> 24 & 0xf0)) & 0x0fffffff;
	}
	if (!n_buckets)
		return 0;
	for (uint32_t i = buckets[h % n_buckets]; i; i = chains[i])
		if (is_wanted(t, i, name))
			return i;
	return 0;
}

void *vs_loader_symbol(const struct vs_image *image, const char *name)
{
	struct tables t;
	uint32_t i;

	if (!read_tables(image, &t))
		return NULL;
	i = t.gnu_hash ? find_gnu(&t, name) : find_sysv(&t, name);
	return i ? (void *)(image->bias + t.symbols[i].st_value) : NULL;
}

static void describe(const struct dl_phdr_info *info, struct vs_image *image)
{
	image->bias = info->dlpi_addr;
	image->dynamic = NULL;
	image->path[0] = '\0';
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			image->dynamic =
				(const void *)(info->dlpi_addr +
					       info->dlpi_phdr[i].p_vaddr);
}

static bool holds(const struct dl_phdr_info *info, const void *address)
{
	uintptr_t at = (uintptr_t)address - info->dlpi_addr;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && at >= p->p_vaddr &&
		    at - p->p_vaddr < p->p_memsz)
			return true;
	}
	return false;
}

/* Any address in the shim's own object. */
static const char own_address;

struct search {
	const void *address;
	struct vs_image *image;
	bool is_behind; /* the shim's own object has passed */
	/* of the objects before and after the shim's */
	void *dlsym[2], *dlvsym[2];
};

static int look_for_next(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;

	(void)size;
	if (holds(info, &own_address)) {
		s->is_behind = true;
		return 0;
	}
	describe(info, s->image);
	if (!s->dlsym[s->is_behind])
		s->dlsym[s->is_behind] = vs_loader_symbol(s->image, "dlsym");
	if (!s->dlvsym[s->is_behind])
		s->dlvsym[s->is_behind] = vs_loader_symbol(s->image, "dlvsym");
	return s->dlsym[1] && s->dlvsym[1];
}

static void *no_dlsym(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version)
{
	(void)version;
	return no_dlsym(handle, name);
}

void vs_loader_find(void)
{
	struct vs_image image;
	struct search s = {.image = &image};
	void *(*next)(void *, const char *) = no_dlsym;
	void *(*next_v)(void *, const char *, const char *) = no_dlvsym;

	dl_iterate_phdr(look_for_next, &s);
	/* opened late, the shim comes after libc */
	if (s.dlsym[1] || s.dlsym[0])
		*(void **)&next = s.dlsym[s.dlsym[1] != NULL];
	if (s.dlvsym[1] || s.dlvsym[0])
		*(void **)&next_v = s.dlvsym[s.dlvsym[1] != NULL];
	__atomic_store_n(&vs_loader_dlvsym, next_v, __ATOMIC_RELEASE);
	__atomic_store_n(&vs_loader_dlsym, next, __ATOMIC_RELEASE);
}

static int look_for_self(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;

	(void)size;
	if (!holds(info, &own_address))
		return 0;
	describe(info, s->image);
	return 1;
}

bool vs_loader_self(struct vs_image *image_out)
{
	struct search s = {.image = image_out};

	return dl_iterate_phdr(look_for_self, &s) == 1;
}

static int look_for_own(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;

	(void)size;
	if (!holds(info, &own_address))
		return 0;
	return holds(info, s->address) ? 1 : -1;
}

bool vs_loader_is_own(const void *address)
{
	struct search s = {.address = address};

	return dl_iterate_phdr(look_for_own, &s) == 1;
}

static int look_for_place(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;

	(void)size;
	if (holds(info, s->address))
		return s->is_behind ? 1 : -1;
	if (holds(info, &own_address))
		s->is_behind = true;
	return 0;
}

bool vs_loader_is_behind(const void *address)
{
	struct search s = {.address = address};

	return dl_iterate_phdr(look_for_place, &s) == 1;
}

static int look_for_libcuda(struct dl_phdr_info *info, size_t size, void *data)
{
	static const char prefix[] = "libcuda.so";
	const char *path = info->dlpi_name ? info->dlpi_name : "";
	const char *slash = strrchr(path, '/');
	struct search *s = data;

	(void)size;
	if (strncmp(slash ? slash + 1 : path, prefix, sizeof(prefix) - 1) ||
	    strlen(path) >= sizeof(s->image->path) ||
	    (s->address && !holds(info, s->address)))
		return 0;
	describe(info, s->image);
	if (!vs_loader_symbol(s->image, "cuInit") ||
	    !(vs_loader_symbol(s->image, "cuGetProcAddress_v2") ||
	      vs_loader_symbol(s->image, "cuGetProcAddress") ||
	      vs_loader_symbol(s->image, "cuMemAlloc_v2")))
		return 0;
	strcpy(s->image->path, path);
	return 1;
}

bool vs_loader_libcuda(const void *address, struct vs_image *image_out)
{
	struct search s = {.address = address, .image = image_out};

	return dl_iterate_phdr(look_for_libcuda, &s) == 1;
}
