/* SPDX-License-Identifier: MIT */
#include "child.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void set_environment(const char *const *environment)
{
	static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK",
					    "PMI_RANK", "SLURM_PROCID"};

	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
		unsetenv(ranks[i]);
	for (size_t i = 0; environ[i];) {
		char name[256];
		size_t n = strcspn(environ[i], "=");

		if (strncmp(environ[i], "VMMSHIM", 7) || n >= sizeof(name)) {
			i++;
			continue;
		}
		memcpy(name, environ[i], n);
		name[n] = '\0';
		unsetenv(name);
	}
	for (; environment && *environment; environment++)
		putenv(strdup(*environment));
}

/* A child whose signals are all blocked does not hear an alarm. */
static void read_all(struct child *c, int fd, pid_t pid)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	c->len = 0;
	while (c->len < sizeof(c->err) - 1) {
		ssize_t n;

		if (poll(&ready, 1, CHILD_SILENT_MS) == 0)
			kill(pid, SIGKILL);
		n = read(fd, c->err + c->len, sizeof(c->err) - 1 - c->len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		c->len += (size_t)n;
	}
	c->err[c->len] = '\0';
}

void child_run(struct child *c, const char *const *environment,
	       void (*fn)(void *arg), void *arg)
{
	int ends[2];
	int status;
	pid_t pid;

	fflush(NULL);
	if (pipe(ends))
		abort();
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		set_environment(environment);
		fn(arg);
		_exit(0);
	}
	close(ends[1]);
	read_all(c, ends[0], pid);
	close(ends[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	c->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	c->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

char *child_text(struct child *c)
{
	char *to = c->err;
	const char *from = c->err;

	while (*from) {
		if (*from == '[' && isdigit((unsigned char)from[1])) {
			const char *p = from + 1;

			while (isdigit((unsigned char)*p))
				p++;
			if (*p == ']') {
				from = p + 1;
				continue;
			}
		}
		*to++ = *from++;
	}
	*to = '\0';
	c->len = (size_t)(to - c->err);
	return c->err;
}

bool is_on_valgrind(void)
{
	const char *preload = getenv("LD_PRELOAD");

	return preload && strstr(preload, "vgpreload");
}
