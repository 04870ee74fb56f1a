/* SPDX-License-Identifier: MIT
 *
 * victim_idle: a program that never uses CUDA; prints what a library that was
 * loaded into it could have changed: threads, signals, open files.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

/*
 * ISO C leaves this name to programs, and a library that was loaded before the
 * C library's would meet this one.
 */
__attribute__((visibility("default"))) int fstat(const char *text);

int fstat(const char *text)
{
	return (int)strlen(text);
}

static int count(const char *folder)
{
	DIR *dir = opendir(folder);
	int n = 0;

	while (dir && readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

int main(void)
{
	static const char *const wanted[] = {
		"Threads:", "SigBlk:", "SigIgn:", "SigCgt:"};
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof(line), status))
		for (size_t i = 0; i < 4; i++)
			if (strncmp(line, wanted[i], strlen(wanted[i])) == 0)
				fputs(line, stdout);
	printf("own function %d\n", fstat("twelve bytes"));
	printf("files %d, threads %d\n", count("/proc/self/fd"),
	       count("/proc/self/task"));
	return 0;
}
