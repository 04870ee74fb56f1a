/* SPDX-License-Identifier: MIT
 *
 * dlsym and dlvsym as the program sees them.
 *
 * For every name but cu[A-Z]... they jump to the real one: arguments and
 * return address stay as they came, since RTLD_NEXT and RTLD_DEFAULT mean
 * something else for each caller. C cannot promise a jump, so this is
 * assembler. The real ones are found at the first call, which may come before
 * any constructor ran: all registers that can hold arguments are kept then.
 *
 * In C (dlvsym also takes names that start with a d this way, see symbols.c):
 *	if (name && name starts with cu[A-Z]) {
 *		look = vs_symbols_look(handle, name, version, return address);
 *		if (look.is_answered)
 *			return look.answer;
 *	}
 *	if (!vs_loader_dlsym)
 *		vs_loader_find();
 *	jump *vs_loader_dlsym
 */
#include "driver/loader.h"
#include "hook/symbols.h"

#if defined(__x86_64__)

/* clang-format off */
#define PUSH(name) "	pushq %" name "\n	.cfi_adjust_cfa_offset 8\n"
#define POP(name) "	popq %" name "\n	.cfi_adjust_cfa_offset -8\n"

#define LOOK_UP(name, also, version, next)                                          \
__asm__(                                                                       \
"	.text\n"                                                               \
"	.p2align 4\n"                                                          \
"	.globl " name "\n"                                                     \
"	.type " name ", @function\n"                                           \
name ":\n"                                                                     \
"	.cfi_startproc\n"                                                      \
"	endbr64\n"                                                             \
"	testq %rsi, %rsi\n"                                                    \
"	jz 1f\n"                                                               \
	also                                                                   \
"	cmpb $'c', (%rsi)\n"                                                   \
"	jne 1f\n"                                                              \
"	cmpb $'u', 1(%rsi)\n"                                                  \
"	jne 1f\n"                                                              \
"	movzbl 2(%rsi), %r11d\n"                                               \
"	subl $'A', %r11d\n"                                                    \
"	cmpl $25, %r11d\n"                                                     \
"	ja 1f\n"                                                               \
"3:	movq (%rsp), %rcx\n" /* return address */                              \
	PUSH("rdi")                                                            \
	PUSH("rsi")                                                            \
	PUSH("rdx")                                                            \
	version                                                                \
"	call vs_symbols_look\n"                                                \
"	movq %rdx, %r11\n"                                                     \
	POP("rdx")                                                             \
	POP("rsi")                                                             \
	POP("rdi")                                                             \
"	testq %r11, %r11\n"                                                    \
"	jz 1f\n"                                                               \
"	ret\n"                                                                 \
"1:	movq " next "(%rip), %r11\n"                                           \
"	testq %r11, %r11\n"                                                    \
"	jz 2f\n"                                                               \
"	jmp *%r11\n"                                                           \
"2:	call vs_loader_find_all_kept\n"                                        \
"	jmp 1b\n"                                                              \
"	.cfi_endproc\n"                                                        \
"	.size " name ", .-" name "\n")

LOOK_UP("dlsym", "", "	xorl %edx, %edx\n", "vs_loader_dlsym");
LOOK_UP("dlvsym", "	cmpb $'d', (%rsi)\n	je 3f\n", "",
	"vs_loader_dlvsym");

/* vs_loader_find with every register kept that may hold an argument. */
__asm__(
"	.text\n"
"	.p2align 4\n"
"	.type vs_loader_find_all_kept, @function\n"
"vs_loader_find_all_kept:\n"
"	.cfi_startproc\n"
	PUSH("rax")
	PUSH("rdi")
	PUSH("rsi")
	PUSH("rdx")
	PUSH("rcx")
	PUSH("r8")
	PUSH("r9")
	PUSH("r10")
"	subq $128, %rsp\n"
"	.cfi_adjust_cfa_offset 128\n"
"	movups %xmm0, (%rsp)\n"
"	movups %xmm1, 16(%rsp)\n"
"	movups %xmm2, 32(%rsp)\n"
"	movups %xmm3, 48(%rsp)\n"
"	movups %xmm4, 64(%rsp)\n"
"	movups %xmm5, 80(%rsp)\n"
"	movups %xmm6, 96(%rsp)\n"
"	movups %xmm7, 112(%rsp)\n"
"	call vs_loader_find\n"
"	movups (%rsp), %xmm0\n"
"	movups 16(%rsp), %xmm1\n"
"	movups 32(%rsp), %xmm2\n"
"	movups 48(%rsp), %xmm3\n"
"	movups 64(%rsp), %xmm4\n"
"	movups 80(%rsp), %xmm5\n"
"	movups 96(%rsp), %xmm6\n"
"	movups 112(%rsp), %xmm7\n"
"	addq $128, %rsp\n"
"	.cfi_adjust_cfa_offset -128\n"
	POP("r10")
	POP("r9")
	POP("r8")
	POP("rcx")
	POP("rdx")
	POP("rsi")
	POP("rdi")
	POP("rax")
"	ret\n"
"	.cfi_endproc\n"
"	.size vs_loader_find_all_kept, .-vs_loader_find_all_kept\n");
/* clang-format on */

#elif defined(__aarch64__)

/* clang-format off */
#define LOOK_UP(name, also, version, next)                                          \
__asm__(                                                                       \
"	.text\n"                                                               \
"	.p2align 4\n"                                                          \
"	.globl " name "\n"                                                     \
"	.type " name ", %function\n"                                           \
name ":\n"                                                                     \
"	.cfi_startproc\n"                                                      \
"	hint #34\n" /* bti c */                                                \
"	cbz x1, 1f\n"                                                          \
"	ldrb w16, [x1]\n"                                                      \
	also                                                                   \
"	cmp w16, #'c'\n"                                                       \
"	b.ne 1f\n"                                                             \
"	ldrb w16, [x1, #1]\n"                                                  \
"	cmp w16, #'u'\n"                                                       \
"	b.ne 1f\n"                                                             \
"	ldrb w16, [x1, #2]\n"                                                  \
"	sub w16, w16, #'A'\n"                                                  \
"	cmp w16, #25\n"                                                        \
"	b.hi 1f\n"                                                             \
"3:	stp x29, x30, [sp, #-48]!\n"                                           \
"	.cfi_def_cfa_offset 48\n"                                              \
"	.cfi_offset 29, -48\n"                                                 \
"	.cfi_offset 30, -40\n"                                                 \
"	mov x29, sp\n"                                                         \
"	stp x0, x1, [sp, #16]\n"                                               \
"	str x2, [sp, #32]\n"                                                   \
"	mov x3, x30\n" /* return address */                                    \
	version                                                                \
"	bl vs_symbols_look\n"                                                  \
"	mov x17, x0\n"                                                         \
"	mov x16, x1\n"                                                         \
"	ldp x0, x1, [sp, #16]\n"                                               \
"	ldr x2, [sp, #32]\n"                                                   \
"	ldp x29, x30, [sp], #48\n"                                             \
"	.cfi_restore 30\n"                                                     \
"	.cfi_restore 29\n"                                                     \
"	.cfi_def_cfa_offset 0\n"                                               \
"	cbz x16, 1f\n"                                                         \
"	mov x0, x17\n"                                                         \
"	ret\n"                                                                 \
"1:	adrp x16, " next "\n"                                                  \
"	ldr x16, [x16, #:lo12:" next "]\n"                                     \
"	cbz x16, 2f\n"                                                         \
"	br x16\n"                                                              \
"2:	mov x17, x30\n"                                                        \
"	.cfi_register 30, 17\n"                                                \
"	bl vs_loader_find_all_kept\n"                                          \
"	mov x30, x17\n"                                                        \
"	.cfi_restore 30\n"                                                     \
"	b 1b\n"                                                                \
"	.cfi_endproc\n"                                                        \
"	.size " name ", .-" name "\n")

LOOK_UP("dlsym", "", "	mov x2, #0\n", "vs_loader_dlsym");
LOOK_UP("dlvsym", "	cmp w16, #'d'\n	b.eq 3f\n", "", "vs_loader_dlvsym");

/*
 * vs_loader_find with every register kept that may hold an argument, and x17,
 * which holds the program's return address.
 */
__asm__(
"	.text\n"
"	.p2align 4\n"
"	.type vs_loader_find_all_kept, %function\n"
"vs_loader_find_all_kept:\n"
"	.cfi_startproc\n"
"	stp x29, x30, [sp, #-224]!\n"
"	.cfi_def_cfa_offset 224\n"
"	.cfi_offset 29, -224\n"
"	.cfi_offset 30, -216\n"
"	.cfi_offset 17, -136\n"
"	mov x29, sp\n"
"	stp x0, x1, [sp, #16]\n"
"	stp x2, x3, [sp, #32]\n"
"	stp x4, x5, [sp, #48]\n"
"	stp x6, x7, [sp, #64]\n"
"	stp x8, x17, [sp, #80]\n"
"	stp q0, q1, [sp, #96]\n"
"	stp q2, q3, [sp, #128]\n"
"	stp q4, q5, [sp, #160]\n"
"	stp q6, q7, [sp, #192]\n"
"	bl vs_loader_find\n"
"	ldp x0, x1, [sp, #16]\n"
"	ldp x2, x3, [sp, #32]\n"
"	ldp x4, x5, [sp, #48]\n"
"	ldp x6, x7, [sp, #64]\n"
"	ldp x8, x17, [sp, #80]\n"
"	ldp q0, q1, [sp, #96]\n"
"	ldp q2, q3, [sp, #128]\n"
"	ldp q4, q5, [sp, #160]\n"
"	ldp q6, q7, [sp, #192]\n"
"	ldp x29, x30, [sp], #224\n"
"	.cfi_restore 17\n"
"	.cfi_restore 30\n"
"	.cfi_restore 29\n"
"	.cfi_def_cfa_offset 0\n"
"	ret\n"
"	.cfi_endproc\n"
"	.size vs_loader_find_all_kept, .-vs_loader_find_all_kept\n");
/* clang-format on */

#else
#error "dlsym needs a tail jump, written for x86-64 and aarch64 only"
#endif
