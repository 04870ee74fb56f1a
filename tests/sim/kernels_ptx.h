/* SPDX-License-Identifier: MIT */
/*
 * The victims' kernels, as PTX for a real GPU.  The simulated driver runs a
 * host function of the same name instead (sim_kernel.c).  All may be launched
 * with any grid of one dimension; each thread strides over the words.
 *
 *  vs_fill(u64 ptr, u32 value, u64 n_words)
 *	ptr[i] = value.
 *  vs_check(u64 ptr, u32 value, u64 n_words, u64 out_count_ptr)
 *	Adds the number of words that differ from value to *(u64 *)out.
 *  vs_copy(u64 dst, u64 src, u64 n_words)
 *	dst[i] = src[i].
 *  vs_add(u64 ptr, u32 delta, u64 n_words)
 *	ptr[i] += delta.
 *  vs_spin_flag(u64 host_flag_ptr)
 *	Waits until *(u32 *)flag != 0; the flag lies in page-locked memory.
 *  vs_sleep(u64 nanoseconds, u64 ptr, u32 value, u64 n_words)
 *	Waits that long, then fills.
 *
 * Checked with: ptxas -arch=sm_90 (and sm_75, the oldest of CUDA 13).
 */
#ifndef KERNELS_PTX_H
#define KERNELS_PTX_H

/* One instruction a line, as PTX is read. */
/* clang-format off */

/* %rd1: first index of this thread, %rd2: stride. */
#define VS_PTX_INDEX							\
"	mov.u32 %r1, %ctaid.x;\n"					\
"	mov.u32 %r2, %ntid.x;\n"					\
"	mov.u32 %r3, %tid.x;\n"						\
"	mad.lo.u32 %r4, %r1, %r2, %r3;\n"				\
"	cvt.u64.u32 %rd1, %r4;\n"					\
"	mov.u32 %r5, %nctaid.x;\n"					\
"	mul.wide.u32 %rd2, %r5, %r2;\n"

#define VS_PTX_REGISTERS						\
"	.reg .pred %p<3>;\n"						\
"	.reg .b32 %r<12>;\n"						\
"	.reg .b64 %rd<16>;\n"

/* for (i = %rd1; i < %rd5; i += %rd2) %rd3[i] = %r6; */
#define VS_PTX_FILL							\
"fill:\n"								\
"	setp.ge.u64 %p1, %rd1, %rd5;\n"					\
"	@%p1 bra done;\n"						\
"	shl.b64 %rd6, %rd1, 2;\n"					\
"	add.u64 %rd7, %rd3, %rd6;\n"					\
"	st.global.u32 [%rd7], %r6;\n"					\
"	add.u64 %rd1, %rd1, %rd2;\n"					\
"	bra fill;\n"							\
"done:\n"								\
"	ret;\n"

static const char vs_kernels_ptx[] =
".version 6.0\n"
".target sm_50\n"
".address_size 64\n"

".visible .entry vs_fill(.param .u64 ptr, .param .u32 value,\n"
"	.param .u64 n)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd3, [ptr];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"	ld.param.u32 %r6, [value];\n"
"	ld.param.u64 %rd5, [n];\n"
VS_PTX_INDEX
VS_PTX_FILL
"}\n"

".visible .entry vs_check(.param .u64 ptr, .param .u32 value,\n"
"	.param .u64 n, .param .u64 out)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd3, [ptr];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"	ld.param.u32 %r6, [value];\n"
"	ld.param.u64 %rd5, [n];\n"
"	ld.param.u64 %rd8, [out];\n"
"	cvta.to.global.u64 %rd8, %rd8;\n"
VS_PTX_INDEX
"	mov.u64 %rd9, 0;\n"
"check:\n"
"	setp.ge.u64 %p1, %rd1, %rd5;\n"
"	@%p1 bra counted;\n"
"	shl.b64 %rd6, %rd1, 2;\n"
"	add.u64 %rd7, %rd3, %rd6;\n"
"	ld.global.u32 %r7, [%rd7];\n"
"	setp.ne.u32 %p2, %r7, %r6;\n"
"	selp.u64 %rd10, 1, 0, %p2;\n"
"	add.u64 %rd9, %rd9, %rd10;\n"
"	add.u64 %rd1, %rd1, %rd2;\n"
"	bra check;\n"
"counted:\n"
"	setp.eq.u64 %p1, %rd9, 0;\n"
"	@%p1 bra done;\n"
"	red.global.add.u64 [%rd8], %rd9;\n"
"done:\n"
"	ret;\n"
"}\n"

".visible .entry vs_copy(.param .u64 dst, .param .u64 src, .param .u64 n)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd3, [dst];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"	ld.param.u64 %rd4, [src];\n"
"	cvta.to.global.u64 %rd4, %rd4;\n"
"	ld.param.u64 %rd5, [n];\n"
VS_PTX_INDEX
"copy:\n"
"	setp.ge.u64 %p1, %rd1, %rd5;\n"
"	@%p1 bra done;\n"
"	shl.b64 %rd6, %rd1, 2;\n"
"	add.u64 %rd7, %rd4, %rd6;\n"
"	ld.global.u32 %r7, [%rd7];\n"
"	add.u64 %rd8, %rd3, %rd6;\n"
"	st.global.u32 [%rd8], %r7;\n"
"	add.u64 %rd1, %rd1, %rd2;\n"
"	bra copy;\n"
"done:\n"
"	ret;\n"
"}\n"

".visible .entry vs_add(.param .u64 ptr, .param .u32 delta,\n"
"	.param .u64 n)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd3, [ptr];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"	ld.param.u32 %r6, [delta];\n"
"	ld.param.u64 %rd5, [n];\n"
VS_PTX_INDEX
"add:\n"
"	setp.ge.u64 %p1, %rd1, %rd5;\n"
"	@%p1 bra done;\n"
"	shl.b64 %rd6, %rd1, 2;\n"
"	add.u64 %rd7, %rd3, %rd6;\n"
"	ld.global.u32 %r7, [%rd7];\n"
"	add.u32 %r7, %r7, %r6;\n"
"	st.global.u32 [%rd7], %r7;\n"
"	add.u64 %rd1, %rd1, %rd2;\n"
"	bra add;\n"
"done:\n"
"	ret;\n"
"}\n"

".visible .entry vs_spin_flag(.param .u64 flag)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd3, [flag];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"spin:\n"
"	ld.volatile.global.u32 %r7, [%rd3];\n"
"	setp.eq.u32 %p1, %r7, 0;\n"
"	@%p1 bra spin;\n"
"	ret;\n"
"}\n"

".visible .entry vs_sleep(.param .u64 ns, .param .u64 ptr,\n"
"	.param .u32 value, .param .u64 n)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd10, [ns];\n"
"	ld.param.u64 %rd3, [ptr];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"	ld.param.u32 %r6, [value];\n"
"	ld.param.u64 %rd5, [n];\n"
"	mov.u64 %rd11, %globaltimer;\n"
"	add.u64 %rd11, %rd11, %rd10;\n"
"wait:\n"
"	mov.u64 %rd12, %globaltimer;\n"
"	setp.lt.u64 %p1, %rd12, %rd11;\n"
"	@%p1 bra wait;\n"
VS_PTX_INDEX
VS_PTX_FILL
"}\n";
/* clang-format on */

#endif
