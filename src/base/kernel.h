/* SPDX-License-Identifier: MIT
 *
 * kernel: a system call by number, past the C library. Async-signal-safe, any
 * thread, no cancellation point.
 *
 * By the instruction, as syscall() is one more name that a program may have for
 * something else (sys.h). x86-64 and aarch64, as configure asks for.
 */
#ifndef VS_BASE_KERNEL_H
#define VS_BASE_KERNEL_H

#include <errno.h>
#include <sys/syscall.h>

/*
 * vs_kernel(NUMBER, up to six arguments): as syscall(), the result, or -1 and
 * errno. Arguments are whole numbers or pointers.
 */
#define vs_kernel(...) VS_KERNEL_SIX(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define VS_KERNEL_SIX(number, a, b, c, d, e, f, ...)                           \
	vs_kernel_six((number), (long)(a), (long)(b), (long)(c), (long)(d),    \
		      (long)(e), (long)(f))

#ifdef __x86_64__
static inline long vs_kernel_ask(long number, long a, long b, long c, long d,
				 long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10),
			   "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#else
static inline long vs_kernel_ask(long number, long a, long b, long c, long d,
				 long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc #0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}
#endif

static inline long vs_kernel_six(long number, long a, long b, long c, long d,
				 long e, long f)
{
	long result = vs_kernel_ask(number, a, b, c, d, e, f);

	if ((unsigned long)result < -4095UL)
		return result;
	errno = (int)-result;
	return -1;
}

#endif
