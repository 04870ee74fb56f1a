/* SPDX-License-Identifier: MIT
 *
 * victim_daemon database | connection | file: a program whose descriptor 2 is
 * its own. It closes what it was started with, and what it opens next, before
 * it uses CUDA, gets the number; `file` was started without a descriptor 2. It
 * handles SIGUSR1 itself, which the shim has a warning for. Prints what the
 * database, the connection or the file holds in the end.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include "victim_link.h"

#define RECORD "record\n"

static void on_signal(int number)
{
	(void)number;
}

static int temporary(int flags)
{
	char name[] = "/tmp/vmmshim-daemon-XXXXXX";
	int any = mkstemp(name), fd = open(name, flags);

	CHECK(any >= 0 && fd >= 0 && unlink(name) == 0);
	/* a second descriptor of the file to read from it */
	CHECK(dup2(any, 10) == 10 && close(any) == 0);
	return fd;
}

/* Opens it as descriptor 2; what is written there is read from 10. */
static void open_own(const char *what)
{
	int pair[2], fd;

	if (!strcmp(what, "connection")) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		CHECK(dup2(pair[1], 10) == 10 && close(pair[1]) == 0);
		fd = pair[0];
	} else {
		fd = temporary(!strcmp(what, "file") ? O_WRONLY : O_RDWR);
	}
	if (fd != STDERR_FILENO)
		CHECK(dup2(fd, STDERR_FILENO) >= 0 && close(fd) == 0);
}

static void write_record(void)
{
	ssize_t n = (ssize_t)strlen(RECORD);

	CHECK(write(STDERR_FILENO, RECORD, strlen(RECORD)) == n);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "database";
	char text[1000];
	ssize_t n;

	if (!strcmp(what, "file") && argc == 2) {
		close(STDERR_FILENO);
		execl("/proc/self/exe", argv[0], what, "again", NULL);
		return 1;
	}
	signal(SIGUSR1, on_signal);
	close(STDERR_FILENO);
	open_own(what);
	write_record();
	victim_start(0);
	victim_free(victim_alloc(MiB));
	write_record();
	if (strcmp(what, "connection"))
		CHECK(lseek(10, 0, SEEK_SET) == 0);
	n = read(10, text, sizeof(text));
	CHECK(n > 0);
	printf("%.*s", (int)n, text);
	return 0;
}
