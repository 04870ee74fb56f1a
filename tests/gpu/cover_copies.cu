/* SPDX-License-Identifier: MIT
 *
 * cover: copies, sets and memory operations that reach the block, each behind
 * a gate in its stream.
 */
#include <algorithm>
#include <cstring>

#include "cover.h"

/* Each STRIDE-th word, or every one. */
static bool is_before(const uint32_t *words, size_t n, size_t stride)
{
	for (size_t i = 0; i < n; i += stride)
		if (words[i] != BEFORE)
			return false;
	return true;
}

static void expect_on_host(uint32_t *words)
{
	memset(words, 0, block_size);
	w.has_read_right = [words] {
		return is_before(words, block_size / 4, STRIDE);
	};
}

/* --- sets ----------------------------------------------------------------- */

static void set(const place &, CUstream stream)
{
	TRY(cuMemsetD32Async(w.block, WRITTEN, block_size / 4, stream));
}

static void set_2d(const place &, CUstream stream)
{
	TRY(cuMemsetD2D32Async(w.block, 1 << 20, WRITTEN, 1 << 18,
			       block_size >> 20, stream));
}

/* --- copies of one device ------------------------------------------------- */

static void copy_to(const place &, CUstream stream)
{
	TRY(cuMemcpyDtoDAsync(w.block, w.source, block_size, stream));
}

static bool has_source_read_right()
{
	static std::vector<uint32_t> words(block_size / 4);

	TRY(cuMemcpyDtoH(words.data(), w.source, block_size));
	return is_before(words.data(), words.size(), STRIDE);
}

static void copy_from(const place &, CUstream stream)
{
	TRY(cuMemcpyDtoDAsync(w.source, w.block, block_size, stream));
	w.has_read_right = has_source_read_right;
}

static void copy_any(const place &, CUstream stream)
{
	TRY(cuMemcpyAsync(w.block, w.source, block_size, stream));
}

static void copy_2d(const place &, CUstream stream)
{
	CUDA_MEMCPY2D c = {};

	c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = w.source;
	c.dstDevice = w.block;
	c.srcPitch = c.dstPitch = c.WidthInBytes = 1 << 16;
	c.Height = block_size >> 16;
	TRY(cuMemcpy2DAsync(&c, stream));
}

static void copy_3d(const place &, CUstream stream)
{
	CUDA_MEMCPY3D c = {};

	c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = w.source;
	c.dstDevice = w.block;
	c.srcPitch = c.dstPitch = c.WidthInBytes = 1 << 16;
	c.Height = c.srcHeight = c.dstHeight = 16;
	c.Depth = block_size >> 20;
	TRY(cuMemcpy3DAsync(&c, stream));
}

/* --- from and to the host ------------------------------------------------- */

static void copy_pinned_to(const place &, CUstream stream)
{
	std::fill_n(w.pinned, block_size / 4, WRITTEN);
	TRY(cuMemcpyHtoDAsync(w.block, w.pinned, block_size, stream));
}

static void copy_pageable_to(const place &, CUstream stream)
{
	std::fill_n(w.pageable, block_size / 4, WRITTEN);
	TRY(cuMemcpyHtoDAsync(w.block, w.pageable, block_size, stream));
}

/* So little that the driver may take it along with the command. */
static void copy_little_to(const place &, CUstream stream)
{
	std::fill_n(w.pageable, 12288, WRITTEN);
	TRY(cuMemcpyHtoDAsync(w.block, w.pageable, 49152, stream));
}

static void copy_to_pinned(const place &, CUstream stream)
{
	expect_on_host(w.pinned);
	TRY(cuMemcpyDtoHAsync(w.pinned, w.block, block_size, stream));
}

static void copy_to_pageable(const place &, CUstream stream)
{
	expect_on_host(w.pageable);
	TRY(cuMemcpyDtoHAsync(w.pageable, w.block, block_size, stream));
}

/* --- between contexts ----------------------------------------------------- */

static void copy_peer_own(const place &, CUstream stream)
{
	TRY(cuMemcpyPeerAsync(w.block, w.a, w.source, w.a, block_size, stream));
}

/* A green context's memory is the primary one's. */
static void copy_peer_other(const place &where, CUstream stream)
{
	CUcontext other = *where.context == w.g ? w.a : *where.context;
	CUdeviceptr from;

	use(*where.context);
	TRY(cuMemAlloc(&from, block_size));
	TRY(cuMemsetD32Async(from, WRITTEN, block_size / 4, stream));
	w.undo.push_back([from] { cuMemFree(from); });
	TRY(cuMemcpyPeerAsync(w.block, w.a, from, other, block_size, stream));
}

/* --- batches -------------------------------------------------------------- */

static void copy_halves(CUstream stream, unsigned flags)
{
	size_t half = block_size / 2, sizes[] = {half, half}, first = 0;
	CUdeviceptr to[] = {w.block, w.block + half},
		    from[] = {w.source, w.source + half};
	CUmemcpyAttributes how = {};

	how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	how.flags = flags;
	TRY(cuMemcpyBatchAsync(to, from, sizes, 2, &how, &first, 1, stream));
}

static void copy_batch(const place &, CUstream stream)
{
	copy_halves(stream, 0);
}

static void copy_batch_overlapping(const place &, CUstream stream)
{
	copy_halves(stream, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
}

static void copy_batch_3d(const place &, CUstream stream)
{
	CUDA_MEMCPY3D_BATCH_OP b = {};

	b.src.type = b.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	b.src.op.ptr.ptr = w.source;
	b.dst.op.ptr.ptr = w.block;
	b.extent.width = 1 << 20;
	b.extent.height = block_size >> 20;
	b.extent.depth = 1;
	b.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	TRY(cuMemcpy3DBatchAsync(1, &b, 0, stream));
}

/* --- managed memory and arrays -------------------------------------------- */

static void copy_managed(const place &, CUstream stream)
{
	TRY(cuMemcpyDtoDAsync(w.block, w.managed, 4 * ARRAY_WORDS, stream));
}

static void prefetch_and_copy(const place &where, CUstream stream)
{
	CUmemLocation there = {};

	there.type = CU_MEM_LOCATION_TYPE_DEVICE;
	there.id = w.devices[0];
	TRY(cuMemPrefetchAsync(w.managed, 4 * ARRAY_WORDS, there, 0, stream));
	copy_managed(where, stream);
}

static void copy_array_to(const place &, CUstream stream)
{
	CUDA_MEMCPY2D c = {};

	c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
	c.srcArray = w.array;
	c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.dstDevice = w.block;
	c.dstPitch = c.WidthInBytes = ARRAY_PITCH;
	c.Height = ARRAY_ROWS;
	TRY(cuMemcpy2DAsync(&c, stream));
}

static bool has_array_read_right()
{
	static std::vector<uint32_t> words(ARRAY_WORDS);
	CUDA_MEMCPY2D c = {};

	c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
	c.srcArray = w.array;
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = words.data();
	c.WidthInBytes = ARRAY_PITCH;
	c.Height = ARRAY_ROWS;
	TRY(cuMemcpy2D(&c));
	return is_before(words.data(), words.size(), 1);
}

static void copy_to_array(const place &, CUstream stream)
{
	CUDA_MEMCPY2D c = {};

	c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = w.block;
	c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	c.dstArray = w.array;
	c.srcPitch = c.WidthInBytes = ARRAY_PITCH;
	c.Height = ARRAY_ROWS;
	TRY(cuMemcpy2DAsync(&c, stream));
	w.has_read_right = has_array_read_right;
}

/* --- memory operations ---------------------------------------------------- */

static void write_values(const place &, CUstream stream)
{
	for (int i = 0; i < 16; i++)
		TRY(cuStreamWriteValue32(
			stream, w.block + i * (block_size / 16), WRITTEN, 0));
}

static void write_by_batch(const place &, CUstream stream)
{
	CUstreamBatchMemOpParams p[2] = {};

	for (int i = 0; i < 2; i++) {
		p[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
		p[i].writeValue.address = w.block + i * (block_size / 2);
		p[i].writeValue.value = WRITTEN;
	}
	TRY(cuStreamBatchMemOp(stream, 2, p, 0));
}

/* --- the table ------------------------------------------------------------ */

static const struct {
	const char *name;
	bool needs_peer; /* another device's stream cannot do it else */
	void (*give)(const place &where, CUstream stream);
} operations[] = {
	{"memsetD32Async", true, set},
	{"memsetD2D32Async", true, set_2d},
	{"memcpyDtoDAsync-to", false, copy_to},
	{"memcpyDtoDAsync-from", false, copy_from},
	{"memcpyAsync-to", false, copy_any},
	{"memcpyHtoDAsync-pinned", false, copy_pinned_to},
	{"memcpyHtoDAsync-pageable", false, copy_pageable_to},
	{"memcpyHtoDAsync-pageable-48K", false, copy_little_to},
	{"memcpyDtoHAsync-pinned", false, copy_to_pinned},
	{"memcpyDtoHAsync-pageable", false, copy_to_pageable},
	{"memcpy2DAsync-to", false, copy_2d},
	{"memcpy3DAsync-to", false, copy_3d},
	{"memcpyPeerAsync-own", false, copy_peer_own},
	{"memcpyPeerAsync-from-other", false, copy_peer_other},
	{"memcpyBatchAsync-to", false, copy_batch},
	{"memcpyBatchAsync-to-overlap", false, copy_batch_overlapping},
	{"memcpy3DBatchAsync-to", false, copy_batch_3d},
	{"managed-to", false, copy_managed},
	{"prefetch+managed-to", false, prefetch_and_copy},
	{"array-to", true, copy_array_to},
	{"array-from", true, copy_to_array},
	{"writeValue", false, write_values},
	{"batchMemOp-write", false, write_by_batch},
};

/* A texture reads linear memory by an object that was made beforehand. */
static void read_texture()
{
	CUDA_RESOURCE_DESC resource = {};
	CUDA_TEXTURE_DESC how = {};
	CUtexObject texture;

	resource.resType = CU_RESOURCE_TYPE_LINEAR;
	resource.res.linear.devPtr = w.block;
	resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
	resource.res.linear.numChannels = 1;
	resource.res.linear.sizeInBytes = block_size;
	TRY(cuTexObjectCreate(&texture, &resource, &how, NULL));
	launch(READ_TEX, w.nb, {}, {&texture});
	w.undo.push_back([texture] { cuTexObjectDestroy(texture); });
}

static const single textures[] = {
	{BASE, "texture of X/A.nonblocking", read_texture, FREE, false},
};

void add_copies()
{
	const unsigned where =
		at(A_LEGACY, A_NB, B_NB, G_STREAM, D_NB, NOPEER_D, LATE_D);

	for (int id = 0; id < N_PLACES; id++) {
		const place &p = places[id];

		for (const auto &o : operations) {
			if (!(where & at(id)) ||
			    (p.of == NOPEER && o.needs_peer))
				continue;
			add_at(p, std::string("spin > ") + o.name, [&p, &o] {
				launch(GATE, p.stream());
				o.give(p, p.stream());
			});
		}
	}
	ADD_SINGLES(textures);
}
