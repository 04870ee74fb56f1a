/* SPDX-License-Identifier: MIT
 *
 * ipc_puppet_process: what a puppet does with its own process: children,
 * programs that it starts, and descriptors.
 */
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc_puppet.h"

/* A descriptor's socket, or the one at its other end, has the shim's name. */
static bool is_named(int fd, int (*ask)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_un name = {0};
	socklen_t size = sizeof(name);

	return ask(fd, (struct sockaddr *)&name, &size) == 0 &&
	       name.sun_family == AF_UNIX &&
	       memcmp(name.sun_path, "\0vmmshim-", 9) == 0;
}

/* Open descriptors that are sockets of the shim's; a driver has others. */
static int count_sockets(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += is_named(fd, getsockname) || is_named(fd, getpeername);
	return n;
}

enum { IS_GOOD, HAS_OPENED, HAS_SOCKETS, HAS_LOST };

int puppet_n_beside;

static int live_as_child(CUipcMemHandle handle, const int *mine, int n)
{
	CUdeviceptr p;

	for (int i = 0; i < n; i++)
		if (fcntl(mine[i], F_GETFD) < 0)
			return HAS_LOST;
	if (count_sockets() > puppet_n_beside)
		return HAS_SOCKETS;
	return cuIpcOpenMemHandle(&p, handle, 1) == CUDA_SUCCESS ? HAS_OPENED
								 : IS_GOOD;
}

/*
 * A child of a process that uses CUDA: its calls fail, nothing hangs, it has
 * the program's files and no others.
 */
static void try_child(const char *text)
{
	static const char *const what[] = {
		[IS_GOOD] = "ok",
		[HAS_OPENED] = "child opened it",
		[HAS_SOCKETS] = "child has sockets",
		[HAS_LOST] = "child lost a file",
	};
	CUipcMemHandle handle = puppet_handle(text);
	int status, mine[16];
	pid_t pid;

	for (int i = 0; i < 16; i++)
		CHECK((mine[i] = open("/dev/null", O_RDONLY)) >= 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(live_as_child(handle, mine, 16));
	CHECK(waitpid(pid, &status, 0) == pid);
	for (int i = 0; i < 16; i++)
		close(mine[i]);
	printf("%s\n", WIFEXITED(status) && WEXITSTATUS(status) <= HAS_LOST
			       ? what[WEXITSTATUS(status)]
			       : "child died");
}

/* A program that is started, not by a fork that the shim hears of. */
static void start_program(void)
{
	char name[] = "sleep", seconds[] = "1000";
	char *const words[] = {name, seconds, NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid;

	/* the pipes are the test's: it waits for their end */
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	for (int fd = 0; fd < 3; fd++)
		CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
	CHECK(posix_spawnp(&pid, words[0], &actions, NULL, words, NULL) == 0);
	posix_spawn_file_actions_destroy(&actions);
	printf("ok %d\n", (int)pid);
}

static void close_all_files(void)
{
	for (int fd = 3; fd < 64; fd++)
		close(fd);
	printf("ok\n");
}

/* As a daemon that has something of its own by the same numbers at once. */
static void replace_files(void)
{
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	CHECK(dup2(pair[0], 64) == 64 && dup2(pair[1], 65) == 65);
	CHECK(write(65, "mine", 4) == 4);
	for (int fd = 3; fd < 64; fd++)
		CHECK(dup2(64, fd) == fd);
	printf("ok\n");
}

/* What came there is its own, too. */
static void check_files(void)
{
	struct stat one, other;
	char text[8];

	CHECK(fstat(64, &one) == 0);
	for (int fd = 3; fd < 64; fd++) {
		CHECK(fstat(fd, &other) == 0);
		CHECK(other.st_ino == one.st_ino);
	}
	CHECK(recv(64, text, sizeof(text), MSG_DONTWAIT) == 4);
	printf("ok\n");
}

/* Leaves a child behind that holds whatever it inherited. */
static void leave_child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		/* the pipes are the test's: it waits for their end */
		close(0);
		close(1);
		close(2);
		pause();
		_exit(0);
	}
	printf("ok %d\n", (int)pid);
}

bool puppet_obey_process(const char *verb, const char *text)
{
	if (strcmp(verb, "child") == 0)
		try_child(text);
	else if (strcmp(verb, "start") == 0)
		start_program();
	else if (strcmp(verb, "leave") == 0)
		leave_child();
	else if (strcmp(verb, "closefiles") == 0)
		close_all_files();
	else if (strcmp(verb, "replacefiles") == 0)
		replace_files();
	else if (strcmp(verb, "checkfiles") == 0)
		check_files();
	else
		return false;
	return true;
}
