/* SPDX-License-Identifier: MIT
 *
 * victim_fork: children before and after CUDA is initialised: one that uses
 * CUDA by itself, one that must not and asks anyway, one that execs.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "victim_link.h"

static void work(const char *who)
{
	CUdeviceptr p[8];
	bool is_good = true;

	for (int i = 0; i < 8; i++) {
		p[i] = victim_alloc(300 * KiB * (size_t)(i + 1));
		TRY(cuMemsetD8(p[i], (unsigned char)i,
			       300 * KiB * (size_t)(i + 1)));
	}
	for (int i = 0; i < 8; i++) {
		is_good =
			is_good &&
			victim_is_filled(p[i], 300 * KiB * (size_t)(i + 1), i);
		victim_free(p[i]);
	}
	printf("%s: data %s\n", who, is_good ? "good" : "bad");
	fflush(stdout);
}

static void wait_for(pid_t pid, const char *who)
{
	int status = -1;

	CHECK(waitpid(pid, &status, 0) == pid);
	printf("%s: exit %d, signal %d\n", who,
	       WIFEXITED(status) ? WEXITSTATUS(status) : -1,
	       WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	fflush(stdout);
}

int main(void)
{
	CUdeviceptr p, q = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		victim_start(0);
		work("early child");
		exit(0);
	}
	wait_for(pid, "early child");

	victim_start(0);
	work("parent");
	p = victim_alloc(5 * MiB);
	TRY(cuMemsetD8(p, 77, 5 * MiB));

	pid = fork();
	if (pid == 0) {
		printf("late child: alloc fails: %d\n",
		       cuMemAlloc(&q, 4096) != CUDA_SUCCESS);
		fflush(stdout);
		_exit(3);
	}
	wait_for(pid, "late child");

	pid = fork();
	if (pid == 0)
		exit(4); /* runs the libraries' destructors */
	wait_for(pid, "exiting child");

	pid = fork();
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", "echo exec; exit 5", (char *)NULL);
		_exit(127);
	}
	wait_for(pid, "exec child");

	work("parent again");
	printf("parent's block: %s\n",
	       victim_is_filled(p, 5 * MiB, 77) ? "good" : "bad");
	victim_free(p);
	return 0;
}
