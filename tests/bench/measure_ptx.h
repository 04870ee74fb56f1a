/* SPDX-License-Identifier: MIT */
/*
 * Kernels of tests/bench/measure.c for bandwidth. The simulated driver takes
 * them and does nothing. One dimension, any grid; each thread strides.
 *
 *  vs_copy16(u64 dst, u64 src, u64 n)
 *	n times 16 bytes.
 *  vs_gather(u64 src, u64 mask, u64 n, u64 out)
 *	Reads n words src[random & mask]; *(u32 *)out is written only for one
 *	value of their sum, so that the reads stay.
 *
 * Checked with: ptxas -arch=sm_90 (and sm_75, the oldest of CUDA 13).
 */
#ifndef MEASURE_PTX_H
#define MEASURE_PTX_H

#include "kernels_ptx.h"

/* One instruction a line, as PTX is read. */
/* clang-format off */
static const char measure_ptx[] =
".version 6.0\n"
".target sm_50\n"
".address_size 64\n"

".visible .entry vs_copy16(.param .u64 dst, .param .u64 src, .param .u64 n)\n"
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
"	shl.b64 %rd6, %rd1, 4;\n"
"	add.u64 %rd7, %rd4, %rd6;\n"
"	ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd7];\n"
"	add.u64 %rd8, %rd3, %rd6;\n"
"	st.global.v4.u32 [%rd8], {%r6, %r7, %r8, %r9};\n"
"	add.u64 %rd1, %rd1, %rd2;\n"
"	bra copy;\n"
"done:\n"
"	ret;\n"
"}\n"

".visible .entry vs_gather(.param .u64 src, .param .u64 mask,\n"
"	.param .u64 n, .param .u64 out)\n"
"{\n"
VS_PTX_REGISTERS
"	ld.param.u64 %rd3, [src];\n"
"	cvta.to.global.u64 %rd3, %rd3;\n"
"	ld.param.u64 %rd4, [mask];\n"
"	ld.param.u64 %rd5, [n];\n"
"	ld.param.u64 %rd8, [out];\n"
"	cvta.to.global.u64 %rd8, %rd8;\n"
VS_PTX_INDEX
"	mov.u32 %r6, 0;\n"
"	mov.u64 %rd9, 0x9e3779b97f4a7c15;\n"
"gather:\n"
"	setp.ge.u64 %p1, %rd1, %rd5;\n"
"	@%p1 bra gathered;\n"
"	mul.lo.u64 %rd6, %rd1, %rd9;\n"
"	shr.u64 %rd7, %rd6, 32;\n"
"	xor.b64 %rd6, %rd6, %rd7;\n"
"	mul.lo.u64 %rd6, %rd6, %rd9;\n"
"	shr.u64 %rd6, %rd6, 16;\n"
"	and.b64 %rd6, %rd6, %rd4;\n"
"	shl.b64 %rd6, %rd6, 2;\n"
"	add.u64 %rd7, %rd3, %rd6;\n"
"	ld.global.u32 %r7, [%rd7];\n"
"	add.u32 %r6, %r6, %r7;\n"
"	add.u64 %rd1, %rd1, %rd2;\n"
"	bra gather;\n"
"gathered:\n"
"	setp.ne.u32 %p2, %r6, 305419896;\n"
"	@%p2 bra done;\n"
"	st.global.u32 [%rd8], %r6;\n"
"done:\n"
"	ret;\n"
"}\n";
/* clang-format on */

#endif
