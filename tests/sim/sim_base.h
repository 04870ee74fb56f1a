/* SPDX-License-Identifier: MIT */
/*
 * Base: configuration from the environment, the one lock, time, messages and
 * memory from the system.  Uses nothing else of the simulator.
 *
 * The lock guards every other module's state.  It is held from the start of a
 * driver call to its end, dropped only while a call waits (sim_wait) and while
 * a worker runs an operation; it must never be held while a program's own
 * function (cuLaunchHostFunc) runs.
 */
#ifndef SIM_BASE_H
#define SIM_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAX_DEVICES 16
/* Minimum and recommended granularity, and the legacy block (an H200). */
#define SIM_GRANULARITY ((uint64_t)2 << 20)

struct sim_config {
	int n_devices;
	uint64_t memory;   /* bytes of each device */
	uint64_t va_limit; /* largest single reservation */
	int version;	   /* as cuDriverGetVersion */
	unsigned lag_us;
	bool no_vmm;
	bool peer, peer_near; /* near: those with the next number alone */
	bool set_access_peer_fails;
	bool handle_reuse;
	bool free_after_end;
	bool stub;
	bool backing; /* false: the books only */
	bool manual;  /* manual clock */
	bool cost_sleep;
	bool judge_abort;
	bool judge_off;
	bool judge_ordered;
	bool trace;
};

extern struct sim_config sim_config;

void sim_config_read(void);
/* NULL if unset or empty. */
const char *sim_env(const char *name);
/* "64M" to bytes; false if it is no size. */
bool sim_parse_size(const char *text, uint64_t *size_out);

void sim_lock(void);
void sim_unlock(void);
/* Drop the lock until cond is signalled; may return early. */
void sim_wait(pthread_cond_t *cond);
/* The same for at most ns. */
void sim_wait_ns(pthread_cond_t *cond, uint64_t ns);
/* After fork, in the child: a lock held by a lost thread is given up. */
void sim_lock_forget(void);

uint64_t sim_clock_ns(void);
void sim_sleep_ns(uint64_t ns);

/* One line on stderr, with one write. */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* calloc and realloc that abort: a test without memory says nothing. */
void *sim_zalloc(size_t size);
void *sim_realloc(void *old, size_t size);

/*
 * Address space without memory, aligned; 0 if there is none.  *_release
 * gives any part of it back, whatever is mapped there.
 */
uint64_t sim_sys_reserve(uint64_t size, uint64_t align);
void sim_sys_release(uint64_t addr, uint64_t size);
/* Put a file over reserved space, not accessible; and take it off again. */
bool sim_sys_map(uint64_t addr, uint64_t size, int fd, uint64_t offset);
void sim_sys_unmap(uint64_t addr, uint64_t size);
void sim_sys_protect(uint64_t addr, uint64_t size, bool read, bool write);
/* A file without a name in any folder; -1 on failure. */
int sim_sys_memfd(const char *name, uint64_t size);

static inline uint64_t sim_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

#endif
