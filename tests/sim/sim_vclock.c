/* SPDX-License-Identifier: MIT */
#include "sim_vclock.h"

#include <stdlib.h>
#include <string.h>

#include "sim_base.h"
#include "sim_stream.h"

/* Where stream is, or where it belongs. */
static unsigned place(const struct sim_vclock *clock,
		      const struct sim_stream *stream)
{
	unsigned low = 0, high = clock->n;

	while (low < high) {
		unsigned mid = (low + high) / 2;

		if (clock->points[mid].stream->id < stream->id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

void sim_vclock_add(struct sim_vclock *clock, struct sim_stream *stream,
		    uint64_t n)
{
	struct sim_point *at;
	unsigned i;

	if (n <= stream->seen)
		return;
	i = place(clock, stream);
	at = clock->points + i;
	if (i < clock->n && at->stream == stream) {
		if (at->n < n)
			at->n = n;
		return;
	}
	if (clock->n == clock->max) {
		clock->max = clock->max ? 2 * clock->max : 4;
		clock->points =
			sim_realloc(clock->points, clock->max * sizeof(*at));
		at = clock->points + i;
	}
	memmove(at + 1, at, (clock->n - i) * sizeof(*at));
	at->stream = sim_stream_hold(stream);
	at->n = n;
	clock->n++;
}

void sim_vclock_merge(struct sim_vclock *clock, const struct sim_vclock *other)
{
	unsigned i;

	for (i = 0; i < other->n; i++)
		sim_vclock_add(clock, other->points[i].stream,
			       other->points[i].n);
}

void sim_vclock_prune(struct sim_vclock *clock)
{
	unsigned i, kept = 0;

	for (i = 0; i < clock->n; i++) {
		struct sim_point point = clock->points[i];

		if (point.n <= point.stream->seen)
			sim_stream_drop(point.stream);
		else
			clock->points[kept++] = point;
	}
	clock->n = kept;
}

bool sim_vclock_complete(const struct sim_vclock *clock)
{
	unsigned i;

	for (i = 0; i < clock->n; i++)
		if (clock->points[i].stream->completed < clock->points[i].n)
			return false;
	return true;
}

bool sim_vclock_covers(const struct sim_vclock *clock,
		       const struct sim_stream *stream, uint64_t n)
{
	unsigned i = place(clock, stream);

	return i < clock->n && clock->points[i].stream == stream &&
	       clock->points[i].n >= n;
}

void sim_vclock_see(struct sim_vclock *clock)
{
	unsigned i;

	for (i = 0; i < clock->n; i++)
		if (clock->points[i].stream->seen < clock->points[i].n)
			clock->points[i].stream->seen = clock->points[i].n;
	sim_vclock_clear(clock);
}

void sim_vclock_clear(struct sim_vclock *clock)
{
	unsigned i;

	for (i = 0; i < clock->n; i++)
		sim_stream_drop(clock->points[i].stream);
	free(clock->points);
	memset(clock, 0, sizeof(*clock));
}
