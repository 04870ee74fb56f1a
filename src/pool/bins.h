/* SPDX-License-Identifier: MIT
 *
 * bins: ranges by their size, sixteen bins for each doubling: all spans of a
 * bin are below those of the next. Which bins are filled is found in two words.
 * Whoever embeds a struct vs_bins says what guards it.
 */
#ifndef VS_POOL_BINS_H
#define VS_POOL_BINS_H

#include <stdint.h>

/* What ranges begin and end at: what NICs pin in (GPU page of 64 KiB). */
#define VS_RANGE_ALIGN ((uint64_t)64 << 10)
/* Up to 2^36 times that. */
#define VS_RANGE_BINS (34 * 16)

struct vs_bins {
	uint64_t filled[(VS_RANGE_BINS + 63) / 64]; /* a bit for each bin */
	uint64_t words; /* a bit for each word of `filled` that is not 0 */
};

/* The bin of a span, in bytes; a request may be for any number of them. */
static inline unsigned vs_bin_of(uint64_t span)
{
	uint64_t units = span / VS_RANGE_ALIGN;
	unsigned log, bin;

	if (units < 16)
		return (unsigned)units;
	log = 63 - (unsigned)__builtin_clzll(units);
	bin = (log - 3) * 16 + (unsigned)(units >> (log - 4) & 15);
	return bin < VS_RANGE_BINS ? bin : VS_RANGE_BINS - 1;
}

static inline void vs_bins_fill(struct vs_bins *b, unsigned bin)
{
	b->filled[bin / 64] |= (uint64_t)1 << bin % 64;
	b->words |= (uint64_t)1 << bin / 64;
}

static inline void vs_bins_empty(struct vs_bins *b, unsigned bin)
{
	b->filled[bin / 64] &= ~((uint64_t)1 << bin % 64);
	if (b->filled[bin / 64] == 0)
		b->words &= ~((uint64_t)1 << bin / 64);
}

/* The first filled bin from `bin` on, the last before it; or VS_RANGE_BINS. */
static inline unsigned vs_bins_from(const struct vs_bins *b, unsigned bin)
{
	unsigned word = bin / 64;
	uint64_t bits = b->filled[word] & ~(uint64_t)0 << bin % 64;

	if (bits == 0) {
		uint64_t words = b->words & ~(uint64_t)1 << word;

		if (words == 0)
			return VS_RANGE_BINS;
		word = (unsigned)__builtin_ctzll(words);
		bits = b->filled[word];
	}
	return word * 64 + (unsigned)__builtin_ctzll(bits);
}

static inline unsigned vs_bins_before(const struct vs_bins *b, unsigned bin)
{
	unsigned word = bin / 64;
	uint64_t bits = b->filled[word] & ~(~(uint64_t)0 << bin % 64);

	if (bits == 0) {
		uint64_t words = b->words & ~(~(uint64_t)0 << word);

		if (words == 0)
			return VS_RANGE_BINS;
		word = 63 - (unsigned)__builtin_clzll(words);
		bits = b->filled[word];
	}
	return word * 64 + 63 - (unsigned)__builtin_clzll(bits);
}

#endif
