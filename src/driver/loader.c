/* SPDX-License-Identifier: MIT */
#include "driver/loader.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/sys.h"

/* A version index with this bit is not the symbol's default version. */
#define VERSION_HIDDEN 0x8000

VS_ASKED_BY_ASM void *(*vs_loader_dlsym)(void *handle, const char *name);
VS_ASKED_BY_ASM void *(*vs_loader_dlvsym)(void *handle, const char *name,
					  const char *version);

/*
 * Note [Before everybody]: vs_loader_find may run before any constructor, and
 * sanitizers ask dlsym for the functions they wrap before those can be called.
 * So it and what it calls are compiled without a sanitizer and call nothing,
 * not even strcmp or dl_iterate_phdr.
 */
#define BARE __attribute__((no_sanitize("address", "thread", "undefined")))

/* An object's tables for looking up names. */
struct tables {
	const ElfW(Sym) * symbols;
	const char *strings;
	const ElfW(Half) * versions; /* NULL: no versions */
	const uint32_t *gnu_hash;
	const uint32_t *hash;
};

/* The loader has relocated most objects' dynamic sections, but not all. */
BARE static const void *pointer(uintptr_t bias, ElfW(Addr) value)
{
	return (const void *)(value < bias ? value + bias : value);
}

BARE static bool read_tables(uintptr_t bias, const ElfW(Dyn) * dynamic,
			     struct tables *t)
{
	t->symbols = NULL;
	t->strings = NULL;
	t->versions = NULL;
	t->gnu_hash = NULL;
	t->hash = NULL;
	if (!dynamic)
		return false;
	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		const void *p = pointer(bias, dynamic->d_un.d_ptr);

		switch (dynamic->d_tag) {
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

BARE static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

BARE static bool is_wanted(const struct tables *t, uint32_t i, const char *name)
{
	const ElfW(Sym) *s = &t->symbols[i];
	unsigned char type = ELF64_ST_TYPE(s->st_info);

	return s->st_shndx != SHN_UNDEF && s->st_value != 0 &&
	       (type == STT_FUNC || type == STT_NOTYPE) &&
	       ELF64_ST_BIND(s->st_info) != STB_LOCAL &&
	       !(t->versions && (t->versions[i] & VERSION_HIDDEN)) &&
	       is_same(t->strings + s->st_name, name);
}

BARE static uint32_t find_gnu(const struct tables *t, const char *name)
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

BARE static uint32_t find_sysv(const struct tables *t, const char *name)
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

BARE static void *find(uintptr_t bias, const ElfW(Dyn) * dynamic,
		       const char *name)
{
	struct tables t;
	uint32_t i;

	if (!read_tables(bias, dynamic, &t))
		return NULL;
	i = t.gnu_hash ? find_gnu(&t, name) : find_sysv(&t, name);
	return i ? (void *)(bias + t.symbols[i].st_value) : NULL;
}

void *vs_loader_symbol(const struct vs_image *image, const char *name)
{
	return find(image->bias, image->dynamic, name);
}

static void describe(const struct dl_phdr_info *info, struct vs_image *image)
{
	image->bias = info->dlpi_addr;
	image->dynamic = NULL;
	image->path = info->dlpi_name ? info->dlpi_name : "";
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
	const char *name;
	void *function;
};

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

/*
 * The first object that has a function, of those behind the shim's own; if
 * there is none (the shim was opened late), of those before.
 */
BARE static void *find_next(const char *name)
{
	const struct link_map *own = _r_debug.r_map, *map;
	void *function = NULL;

	while (own && own->l_ld != _DYNAMIC)
		own = own->l_next;
	for (map = own ? own->l_next : NULL; map && !function;
	     map = map->l_next)
		function = find(map->l_addr, map->l_ld, name);
	for (map = _r_debug.r_map; map && map != own && !function;
	     map = map->l_next)
		function = find(map->l_addr, map->l_ld, name);
	return function;
}

VS_ASKED_BY_ASM BARE void vs_loader_find(void)
{
	void *next = find_next("dlsym"), *next_v = find_next("dlvsym");

	if (!next)
		next = (void *)no_dlsym;
	if (!next_v)
		next_v = (void *)no_dlvsym;
	__atomic_store_n((void **)&vs_loader_dlvsym, next_v, __ATOMIC_RELEASE);
	__atomic_store_n((void **)&vs_loader_dlsym, next, __ATOMIC_RELEASE);
}

void *vs_loader_look(void *handle, const char *name, const char *version)
{
	void *(*next)(void *, const char *);
	void *(*next_v)(void *, const char *, const char *);

	if (!__atomic_load_n(&vs_loader_dlsym, __ATOMIC_ACQUIRE))
		vs_loader_find();
	next = __atomic_load_n(&vs_loader_dlsym, __ATOMIC_RELAXED);
	next_v = __atomic_load_n(&vs_loader_dlvsym, __ATOMIC_RELAXED);
	return version ? next_v(handle, name, version) : next(handle, name);
}

/*
 * Note [Fork amid a look]: dl_iterate_phdr holds a lock of the loader that
 * glibc does not renew in a forked child, as it does those of dlsym. A child
 * that is born while another thread iterates would hang in its first dlopen.
 * So a fork waits for the iterations under way, and new ones for the fork:
 * neither for long, since what else a fork waits for may wait for this thread.
 * Nobody waits for himself: a signal handler may fork in the middle of a look,
 * and a handler of forks may look. From the start of the program on: the first
 * looks come before anything else of the shim's.
 */
#define PATIENCE_MS 100
#define TICK_NS 100000

static _Atomic int n_iterating, n_forking;
/* Of this thread: a signal's handler may fork, a fork's handler may look. */
static __thread int own_iterating __attribute__((tls_model("initial-exec")));
static __thread int own_forking __attribute__((tls_model("initial-exec")));

/* Until the number is `own`, or PATIENCE_MS are over. Keeps errno. */
static void wait_for_none(_Atomic int *number, int own, uint64_t began)
{
	int saved = errno;

	while (atomic_load(number) > own && vs_clock_ms() - began < PATIENCE_MS)
		vs_cancel_free_sleep(TICK_NS);
	errno = saved;
}

void vs_loader_before_fork(void)
{
	own_forking++;
	atomic_fetch_add(&n_forking, 1);
	if (atomic_load(&n_iterating) > own_iterating)
		wait_for_none(&n_iterating, own_iterating, vs_clock_ms());
}

void vs_loader_after_fork(void)
{
	atomic_fetch_sub(&n_forking, 1);
	own_forking--;
}

static void forked(void)
{
	own_forking = 0;
	atomic_store(&n_forking, 0);
	atomic_store(&n_iterating, own_iterating);
}

static void __attribute__((constructor)) at_start(void)
{
	pthread_atfork(vs_loader_before_fork, vs_loader_after_fork, forked);
}

/* Forks that begin from here on wait. */
static void begin_iterating(void)
{
	own_iterating++;
	atomic_fetch_add(&n_iterating, 1);
}

static void end_iterating(void)
{
	atomic_fetch_sub(&n_iterating, 1);
	own_iterating--;
}

/* Another may have begun since the last has ended: asked anew each time. */
static void wait_for_forks(void)
{
	uint64_t began = vs_clock_ms();

	while (atomic_load(&n_forking) > 0 &&
	       vs_clock_ms() - began < PATIENCE_MS) {
		end_iterating();
		wait_for_none(&n_forking, 0, began);
		begin_iterating();
	}
}

/*
 * Note [Profilers]: a profiler's signal handler takes its own lock, and then
 * that of dl_iterate_phdr to unwind. A thread that is interrupted amid a look
 * would wait for the one with the other in its hands. The loader's own look-ups
 * hold another lock. What the thread itself causes cannot be held back.
 */
static void hold_signals(sigset_t *saved)
{
	static const int own[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
	sigset_t signals;

	vs_sys_sigset_fill(&signals);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		vs_sys_sigset_remove(&signals, own[i]);
	pthread_sigmask(SIG_BLOCK, &signals, saved);
}

int vs_loader_iterate(int (*look)(struct dl_phdr_info *, size_t, void *),
		      void *data)
{
	sigset_t saved;
	int result;

	begin_iterating();
	if (own_forking == 0 && atomic_load(&n_forking) > 0)
		wait_for_forks();
	hold_signals(&saved);
	result = dl_iterate_phdr(look, data);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	end_iterating();
	return result;
}

static int add_tls(struct dl_phdr_info *info, size_t size, void *data)
{
	size_t *sum = data;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS)
			*sum += info->dlpi_phdr[i].p_memsz +
				info->dlpi_phdr[i].p_align;
	return 0;
}

size_t vs_loader_tls(void)
{
	static _Atomic size_t kept;
	size_t sum = atomic_load(&kept);

	if (sum > 0)
		return sum;
	vs_loader_iterate(add_tls, &sum);
	atomic_store(&kept, sum);
	return sum;
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

	return vs_loader_iterate(look_for_self, &s) == 1;
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

	return vs_loader_iterate(look_for_own, &s) == 1;
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

	return vs_loader_iterate(look_for_place, &s) == 1;
}

static int look_for_function(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;

	(void)size;
	if (holds(info, &own_address)) {
		s->is_behind = true;
		return 0;
	}
	if (!s->is_behind)
		return 0;
	describe(info, s->image);
	s->function = vs_loader_symbol(s->image, s->name);
	return s->function != NULL;
}

void *vs_loader_behind(const char *name)
{
	struct vs_image image;
	struct search s = {.image = &image, .name = name};

	vs_loader_iterate(look_for_function, &s);
	return s.function;
}

static int look_for_libcuda(struct dl_phdr_info *info, size_t size, void *data)
{
	static const char prefix[] = "libcuda.so";
	const char *path = info->dlpi_name ? info->dlpi_name : "";
	const char *slash = strrchr(path, '/');
	struct search *s = data;

	(void)size;
	if (strncmp(slash ? slash + 1 : path, prefix, sizeof(prefix) - 1) ||
	    (s->address && !holds(info, s->address)))
		return 0;
	describe(info, s->image);
	return vs_loader_symbol(s->image, "cuInit") &&
	       (vs_loader_symbol(s->image, "cuGetProcAddress_v2") ||
		vs_loader_symbol(s->image, "cuGetProcAddress") ||
		vs_loader_symbol(s->image, "cuMemAlloc_v2"));
}

bool vs_loader_libcuda(const void *address, struct vs_image *image_out)
{
	struct search s = {.address = address, .image = image_out};

	return vs_loader_iterate(look_for_libcuda, &s) == 1;
}

static int look_before(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;

	if (holds(info, &own_address))
		return -1;
	if (look_for_libcuda(info, size, data))
		return 1;
	describe(info, s->image);
	return vs_loader_symbol(s->image, "vmmshim_version") &&
	       vs_loader_symbol(s->image, "cuGetProcAddress");
}

bool vs_loader_before(struct vs_image *image_out)
{
	struct search s = {.image = image_out};

	return vs_loader_iterate(look_before, &s) == 1;
}
