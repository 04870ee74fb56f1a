/* SPDX-License-Identifier: MIT */
#include "sim_base.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#endif
#endif

struct sim_config sim_config;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

const char *sim_env(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

bool sim_parse_size(const char *text, uint64_t *size_out)
{
	static const char units[] = "KMGT";
	const char *unit;
	char *end;
	double n = strtod(text, &end);

	if (end == text || n < 0)
		return false;
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end++));
		if (!unit)
			return false;
		n *= (double)(1ull << 10 * (unit - units + 1));
	}
	if (*end || n >= 9e18)
		return false;
	*size_out = (uint64_t)n;
	return true;
}

static uint64_t env_size(const char *name, uint64_t otherwise)
{
	const char *text = sim_env(name);
	uint64_t size;

	if (!text)
		return otherwise;
	if (sim_parse_size(text, &size))
		return size;
	sim_say("sim: %s=%s is no size, ignored", name, text);
	return otherwise;
}

static bool env_is(const char *name, const char *what)
{
	const char *text = sim_env(name);

	return text && strcmp(text, what) == 0;
}

void sim_config_read(void)
{
	struct sim_config *c = &sim_config;

	memset(c, 0, sizeof(*c));
	c->n_devices = (int)env_size("SIM_DEVICES", 1);
	if (c->n_devices < 1 || c->n_devices > SIM_MAX_DEVICES) {
		sim_say("sim: SIM_DEVICES must be 1 to %d, using 1",
			SIM_MAX_DEVICES);
		c->n_devices = 1;
	}
	c->memory = env_size("SIM_MEMORY", (uint64_t)8 << 30);
	/* The largest that an H200 gave was 64 TiB. */
	c->va_limit = env_size("SIM_VA_LIMIT", (uint64_t)64 << 40);
#ifdef SIM_TSAN
	/* Beyond this the shadow has no place for the address. */
	if (c->va_limit > (uint64_t)512 << 30)
		c->va_limit = (uint64_t)512 << 30;
#endif
	c->version = (int)env_size("SIM_DRIVER_VERSION", 13000);
	c->lag_us = (unsigned)env_size("SIM_LAG_US", 0);
	c->no_vmm = env_is("SIM_NO_VMM", "1");
	c->peer = !env_is("SIM_PEER", "0");
	c->peer_near = env_is("SIM_PEER", "near");
	c->set_access_peer_fails = env_is("SIM_SET_ACCESS_PEER_FAILS", "1");
	c->handle_reuse = env_is("SIM_HANDLE_REUSE", "1");
	c->free_after_end = env_is("SIM_FREE_AFTER_END", "1");
	c->stub = env_is("SIM_STUB", "1");
	c->backing = !env_is("SIM_BACKING", "none");
	c->manual = env_is("SIM_CLOCK", "manual");
	c->cost_sleep = env_is("SIM_COST", "sleep");
	c->judge_abort = env_is("SIM_JUDGE", "abort");
	c->judge_off = env_is("SIM_JUDGE", "off");
	c->judge_ordered = env_is("SIM_JUDGE_MODE", "ordered");
	c->trace = env_is("SIM_TRACE", "1");
}

/* A thread that waits in the driver, or reports, is not cancelled there. */
static __thread int cancel_state;

void sim_lock(void)
{
	int saved;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved);
	pthread_mutex_lock(&mutex);
	cancel_state = saved;
}

void sim_unlock(void)
{
	int saved = cancel_state;

	pthread_mutex_unlock(&mutex);
	pthread_setcancelstate(saved, NULL);
}

void sim_lock_forget(void)
{
	pthread_mutex_init(&mutex, NULL);
}

void sim_wait(pthread_cond_t *cond)
{
	pthread_cond_wait(cond, &mutex);
}

void sim_wait_ns(pthread_cond_t *cond, uint64_t ns)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(ns / 1000000000);
	until.tv_nsec = (long)(ns % 1000000000);
	pthread_cond_timedwait(cond, &mutex, &until);
}

uint64_t sim_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void sim_sleep_ns(uint64_t ns)
{
	struct timespec left = {
		.tv_sec = (time_t)(ns / 1000000000),
		.tv_nsec = (long)(ns % 1000000000),
	};
	int saved;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved);
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	pthread_setcancelstate(saved, NULL);
}

void sim_say(const char *format, ...)
{
	char line[512];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (n < 0)
		return;
	if ((size_t)n > sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n] = '\n';
	if (write(STDERR_FILENO, line, (size_t)n + 1) < 0)
		return;
}

static void *check(void *p)
{
	if (!p) {
		sim_say("sim: out of host memory");
		abort();
	}
	return p;
}

void *sim_zalloc(size_t size)
{
	return check(calloc(1, size));
}

void *sim_realloc(void *old, size_t size)
{
	return check(realloc(old, size));
}

/*
 * Past libc for large ranges: ThreadSanitizer would walk the shadow of
 * terabytes that nobody touches.
 */
static void *map(uint64_t addr, uint64_t size, int prot, int flags, int fd,
		 uint64_t offset)
{
	if (size <= (uint64_t)4 << 30)
		return mmap((void *)addr, size, prot, flags, fd, (off_t)offset);
	return (void *)syscall(SYS_mmap, addr, size, prot, flags, fd,
			       (off_t)offset);
}

static void unmap(uint64_t addr, uint64_t size)
{
	if (size == 0)
		return;
	if (size <= (uint64_t)4 << 30)
		munmap((void *)addr, size);
	else
		syscall(SYS_munmap, addr, size);
}

#define RESERVE_FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

uint64_t sim_sys_reserve(uint64_t size, uint64_t align)
{
	uint64_t base, addr, end;
	void *p;

	if (size > sim_config.va_limit)
		return 0;
	p = map(0, size + align, PROT_NONE, RESERVE_FLAGS, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	base = (uint64_t)p;
	end = base + size + align;
	addr = sim_round_up(base, align);
	unmap(base, addr - base);
	unmap(addr + size, end - addr - size);
	return addr;
}

void sim_sys_release(uint64_t addr, uint64_t size)
{
	unmap(addr, size);
}

bool sim_sys_map(uint64_t addr, uint64_t size, int fd, uint64_t offset)
{
	int flags = MAP_FIXED | (fd < 0 ? RESERVE_FLAGS : MAP_SHARED);
	int saved = errno;
	bool ok = map(addr, size, PROT_NONE, flags, fd, offset) != MAP_FAILED;

	errno = saved;
	return ok;
}

void sim_sys_unmap(uint64_t addr, uint64_t size)
{
	sim_sys_map(addr, size, -1, 0);
}

void sim_sys_protect(uint64_t addr, uint64_t size, bool read, bool write)
{
	mprotect((void *)addr, size,
		 (read ? PROT_READ : 0) | (write ? PROT_WRITE : 0));
}

/* One file for each chunk: the usual 1024 files are soon spent. */
static bool raise_file_limit(void)
{
	struct rlimit limit;

	if (errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) ||
	    limit.rlim_cur == limit.rlim_max)
		return false;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

int sim_sys_memfd(const char *name, uint64_t size)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	if (fd < 0 && raise_file_limit())
		fd = memfd_create(name, MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)size)) {
		close(fd);
		return -1;
	}
	return fd;
}
