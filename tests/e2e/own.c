/* SPDX-License-Identifier: MIT
 *
 * own: functions and variables of a program's own with names that POSIX has, or
 * the C library, and ISO C leaves to programs. A library that was loaded before
 * the C library's would meet them: who calls one from the shim ends the
 * program. For anybody else, as the simulated driver, they are what the C
 * library has.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All of them take whole registers, and as many at most. */
typedef long any_function(long, long, long, long, long, long, long);

/* The runtime of a sanitizer calls some before it can look at memory. */
#define EARLY __attribute__((no_sanitize_address))

EARLY static any_function *look(const char *name, const void *caller)
{
	char line[100];
	Dl_info about;
	const char *file;
	int n;

	if (dladdr(caller, &about) && about.dli_fname) {
		file = strrchr(about.dli_fname, '/');
		if (strncmp(file ? file + 1 : about.dli_fname, "libvmmshim",
			    10) == 0) {
			n = snprintf(line, sizeof(line),
				     "the shim calls the program's %s()\n",
				     name);
			((ssize_t(*)(int, const void *, size_t))dlsym(
				RTLD_NEXT, "write"))(2, line, (size_t)n);
			abort();
		}
	}
	return (any_function *)dlsym(RTLD_NEXT, name);
}

#define OWN(name)                                                              \
	__attribute__((visibility("default")))                                 \
	any_function own_##name __asm__(#name);                                \
	EARLY long own_##name(long a, long b, long c, long d, long e, long f,  \
			      long g)                                          \
	{                                                                      \
		const void *caller = __builtin_return_address(0);              \
                                                                               \
		return look(#name, caller)(a, b, c, d, e, f, g);               \
	}

OWN(accept4)
OWN(access)
OWN(alarm)
OWN(bind)
OWN(close)
OWN(connect)
OWN(dup)
OWN(fcntl)
OWN(flock)
OWN(fstat)
OWN(ftruncate)
OWN(geteuid)
OWN(gethostname)
OWN(getpid)
OWN(getppid)
OWN(getrandom)
OWN(getrlimit)
OWN(getsockopt)
OWN(gettid)
OWN(ioctl)
OWN(isatty)
OWN(kill)
OWN(link)
OWN(listen)
OWN(madvise)
OWN(munlock)
OWN(nanosleep)
OWN(open)
OWN(openat)
OWN(poll)
OWN(ppoll)
OWN(read)
OWN(readlink)
OWN(recvmsg)
OWN(sched_yield)
OWN(select)
OWN(sendmsg)
OWN(shmat)
OWN(shmctl)
OWN(shmdt)
OWN(shmget)
OWN(sigaddset)
OWN(sigemptyset)
OWN(sigfillset)
OWN(sigismember)
OWN(sigpending)
OWN(sigtimedwait)
OWN(sleep)
OWN(socket)
OWN(stat)
OWN(syscall)
OWN(sysconf)
OWN(tgkill)
OWN(uname)
OWN(usleep)
OWN(write)

/* Variables of another kind: who takes them for the C library's crashes. */
#define OWN_NUMBER(name)                                                       \
	__attribute__((visibility("default"))) long own_##name __asm__(        \
		#name) = 1;

OWN_NUMBER(environ)
OWN_NUMBER(program_invocation_short_name)
