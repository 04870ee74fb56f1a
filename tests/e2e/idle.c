/* SPDX-License-Identifier: MIT
 *
 * idle LIBRARY TIMES LIMIT_US PROGRAM [ARG...]
 *
 * Starts a program TIMES times without and TIMES times with LIBRARY preloaded,
 * in turn, and compares output, exit status and time. That is time of a
 * processor, of the quickest tenth: how long a program waits for one tells how
 * busy the machine is.
 * LIMIT_US 0: no limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_OUTPUT 65536

struct run {
	char output[MAX_OUTPUT];
	size_t size;
	int status;
	uint64_t us;
};

static uint64_t in_us(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

/* Both standard output and error into one pipe. */
static int start(struct run *run, char **argv, char **env)
{
	posix_spawn_file_actions_t actions;
	struct rusage used;
	int fds[2], error;
	ssize_t n;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
	posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
	error = posix_spawnp(&pid, argv[0], &actions, NULL, argv, env);
	close(fds[1]);
	run->size = 0;
	do {
		n = read(fds[0], run->output + run->size,
			 MAX_OUTPUT - run->size);
		run->size += n > 0 ? (size_t)n : 0;
	} while (n > 0 || (n < 0 && errno == EINTR));
	if (!error && wait4(pid, &run->status, 0, &used) != pid)
		error = errno;
	if (!error)
		run->us = in_us(used.ru_utime) + in_us(used.ru_stime);
	close(fds[0]);
	posix_spawn_file_actions_destroy(&actions);
	if (error)
		fprintf(stderr, "%s: %s\n", argv[0], strerror(error));
	return error ? -1 : 0;
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	static struct run plain, preloaded;
	uint64_t *times[2];
	char preload[4096], *env[256];
	double limit, quick[2];
	size_t n, n_env = 0;

	if (argc < 5 || (n = strtoul(argv[2], NULL, 10)) == 0) {
		fprintf(stderr, "usage: idle LIBRARY TIMES LIMIT_US PROGRAM\n");
		return 99;
	}
	limit = atof(argv[3]);
	times[0] = calloc(n, sizeof(uint64_t));
	times[1] = calloc(n, sizeof(uint64_t));
	if (!times[0] || !times[1])
		return 99;
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", argv[1]);
	env[n_env++] = preload;
	for (char **e = environ; *e && n_env < 255; e++)
		if (strncmp(*e, "LD_PRELOAD=", 11) != 0)
			env[n_env++] = *e;
	env[n_env] = NULL;

	for (size_t i = 0; i < n; i++) {
		if (start(&plain, argv + 4, env + 1) ||
		    start(&preloaded, argv + 4, env))
			return 99;
		times[0][i] = plain.us;
		times[1][i] = preloaded.us;
		if (plain.status == preloaded.status &&
		    plain.size == preloaded.size &&
		    memcmp(plain.output, preloaded.output, plain.size) == 0)
			continue;
		printf("run %zu differs: status %d and %d\n--- without\n%.*s"
		       "--- with\n%.*s",
		       i, plain.status, preloaded.status, (int)plain.size,
		       plain.output, (int)preloaded.size, preloaded.output);
		return 1;
	}
	for (int i = 0; i < 2; i++) {
		qsort(times[i], n, sizeof(uint64_t), compare_times);
		quick[i] = (double)times[i][n / 10];
	}
	printf("%zu runs, %.0f us without, %.0f us with: %.0f us more\n", n,
	       quick[0], quick[1], quick[1] - quick[0]);
	return limit > 0 && quick[1] - quick[0] > limit;
}
