/* SPDX-License-Identifier: MIT */
#include "sim_judge.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "sim_base.h"
#include "sim_call.h"
#include "sim_context.h"
#include "sim_range.h"
#include "sim_stream.h"
#include "sim_work.h"

/*
 * A touch: the last work of one stream on one range.  Later work of the same
 * stream on the same range takes its place, so there are no more touches than
 * ranges in use times streams, however long nobody synchronizes.
 *
 * Touches hang in buckets by 2 MiB page; those over many pages in one list.
 */
#define PAGE_BITS 21
#define MAX_PAGES 8
#define N_BUCKETS 4096

struct touch {
	struct touch *next;
	uint64_t start, size;
	struct sim_stream *stream; /* held */
	uint64_t seq;
	uint64_t heeded; /* the last of it that a free waits for, or 0 */
	uint64_t note;	 /* announced range it was for, or 0 */
	const char *name, *call;
};

struct note {
	struct sim_range range;
	uint64_t id;
};

static struct touch *buckets[N_BUCKETS];
static struct touch *wide;
static unsigned long n_touches, sweep_at = 65536;
static struct sim_ranges notes;
static uint64_t last_note;
static enum sim_judge_mode mode;
static bool quiet;
static unsigned long counts[SIM_V_KINDS];
static char last_text[512];

static const char *const names[SIM_V_KINDS] = {
	[SIM_V_BUSY] = "busy",	     [SIM_V_UNSEEN] = "unseen",
	[SIM_V_ILLEGAL] = "illegal", [SIM_V_HANDOUT] = "handout",
	[SIM_V_OVERLAP] = "overlap", [SIM_V_STALE] = "stale",
	[SIM_V_RULE] = "rule",	     [SIM_V_BAD_FREE] = "bad-free",
};

const char *sim_violation_name(enum sim_violation kind)
{
	return names[kind];
}

void sim_violation(enum sim_violation kind, const char *format, ...)
{
	va_list args;

	if (sim_config.judge_off)
		return;
	counts[kind]++;
	va_start(args, format);
	vsnprintf(last_text, sizeof(last_text), format, args);
	va_end(args);
	if (kind == SIM_V_BAD_FREE && !sim_config.trace)
		return;
	if (!quiet)
		sim_say("sim: violation (%s): %s; in %s", names[kind],
			last_text, sim_thread.call ? sim_thread.call : "work");
	if (sim_config.judge_abort && kind != SIM_V_BAD_FREE)
		abort();
}

/* ---- touches --------------------------------------------------------- */

static struct touch **bucket_of(uint64_t page)
{
	return &buckets[page * 0x9e3779b97f4a7c15u >> 52 & (N_BUCKETS - 1)];
}

static bool is_old(const struct touch *t)
{
	return t->seq <= t->stream->seen;
}

static void drop_touch(struct touch **link)
{
	struct touch *t = *link;

	*link = t->next;
	sim_stream_drop(t->stream);
	free(t);
	n_touches--;
}

static void sweep(struct touch **link)
{
	while (*link) {
		if (is_old(*link))
			drop_touch(link);
		else
			link = &(*link)->next;
	}
}

static void sweep_all(void)
{
	unsigned i;

	for (i = 0; i < N_BUCKETS; i++)
		sweep(&buckets[i]);
	sweep(&wide);
	sweep_at = n_touches < 32768 ? 65536 : 2 * n_touches;
}

static bool overlaps(const struct touch *t, uint64_t start, uint64_t size)
{
	return t->start < start + size && start < t->start + t->size;
}

static uint64_t note_at(uint64_t addr)
{
	struct note *note = (struct note *)sim_range_find(&notes, addr);

	return note ? note->id : 0;
}

static void put(struct touch **list, const struct touch *new)
{
	struct touch **link = list, *t;

	while ((t = *link)) {
		if (is_old(t)) {
			drop_touch(link);
			continue;
		}
		if (t->stream == new->stream && t->start == new->start &&
		    t->size == new->size && t->note == new->note) {
			t->seq = new->seq;
			if (new->heeded)
				t->heeded = new->heeded;
			t->name = new->name;
			t->call = new->call;
			return;
		}
		link = &t->next;
	}
	t = sim_zalloc(sizeof(*t));
	*t = *new;
	sim_stream_hold(t->stream);
	t->next = *list;
	*list = t;
	n_touches++;
}

static void add_touch(const struct touch *touch)
{
	uint64_t first = touch->start >> PAGE_BITS;
	uint64_t last = (touch->start + touch->size - 1) >> PAGE_BITS;

	if (last - first >= MAX_PAGES) {
		put(&wide, touch);
	} else {
		for (; first <= last; first++)
			put(bucket_of(first), touch);
	}
	if (n_touches > sweep_at)
		sweep_all();
}

/*
 * The first touch in the list that overlaps, is not old, and matters to the
 * caller; old ones go on the way.
 */
static struct touch *find_in(struct touch **link, uint64_t start, uint64_t size,
			     bool (*matters)(const struct touch *, void *),
			     void *arg)
{
	while (*link) {
		if (is_old(*link)) {
			drop_touch(link);
			continue;
		}
		if (overlaps(*link, start, size) && matters(*link, arg))
			return *link;
		link = &(*link)->next;
	}
	return NULL;
}

static struct touch *find_touch(uint64_t start, uint64_t size,
				bool (*matters)(const struct touch *, void *),
				void *arg)
{
	uint64_t page = start >> PAGE_BITS;
	uint64_t last = (start + size - 1) >> PAGE_BITS;
	struct touch *t = NULL;
	unsigned i;

	if (!n_touches || !size)
		return NULL;
	if (last - page >= N_BUCKETS) {
		for (i = 0; i < N_BUCKETS && !t; i++)
			t = find_in(&buckets[i], start, size, matters, arg);
	} else {
		for (; page <= last && !t; page++)
			t = find_in(bucket_of(page), start, size, matters, arg);
	}
	return t ? t : find_in(&wide, start, size, matters, arg);
}

static void report(enum sim_violation kind, const char *what,
		   const struct touch *t, uint64_t start, uint64_t size)
{
	sim_violation(kind,
		      "%s %#llx+%#llx: %s (%s) touches %#llx+%#llx as "
		      "work %llu of stream %llu, where %llu are complete and "
		      "%llu seen",
		      what, (unsigned long long)start, (unsigned long long)size,
		      t->name, t->call, (unsigned long long)t->start,
		      (unsigned long long)t->size, (unsigned long long)t->seq,
		      (unsigned long long)t->stream->id,
		      (unsigned long long)t->stream->completed,
		      (unsigned long long)t->stream->seen);
}

/* ---- submission ------------------------------------------------------ */

/* Ordered mode: old work for another owner that this work does not follow. */
static bool races(const struct touch *t, void *arg)
{
	const struct touch *new = arg;

	return t->note != new->note && t->stream != new->stream &&
	       !sim_vclock_covers(&new->stream->behind, t->stream, t->seq);
}

void sim_judge_submit(struct sim_stream *stream, uint64_t seq,
		      const struct sim_op *op)
{
	/* by a graph that was launched in another device's stream, too */
	bool is_heeded = op->kind == SIM_OP_COPY || op->kind == SIM_OP_SET ||
			 op->device != stream->ctx->device;
	unsigned i;

	if (sim_config.judge_off)
		return;
	for (i = 0; i < op->n_touch; i++) {
		struct touch new = {
			.start = op->touch[i].addr,
			.size = op->touch[i].size,
			.stream = stream,
			.seq = seq,
			.heeded = is_heeded ? seq : 0,
			.name = op->name,
			.call = op->call,
		};
		const struct touch *old;

		if (!new.size || op->touch[i].host)
			continue;
		new.note = note_at(new.start);
		if (mode == SIM_JUDGE_ORDERED) {
			old = find_touch(new.start, new.size, races, &new);
			if (old)
				report(SIM_V_HANDOUT,
				       "work not ordered behind "
				       "the former owner's, on",
				       old, new.start, new.size);
		}
		add_touch(&new);
	}
}

/* ---- memory that goes ------------------------------------------------- */

static bool is_pending(const struct touch *t, void *arg)
{
	(void)arg;
	return t->seq > t->stream->completed;
}

static bool is_any(const struct touch *t, void *arg)
{
	(void)t;
	(void)arg;
	return true;
}

void sim_judge_gone(uint64_t start, uint64_t size)
{
	const struct touch *t;

	if (sim_config.judge_off)
		return;
	t = find_touch(start, size, is_pending, NULL);
	if (t) {
		report(SIM_V_BUSY, "taken away", t, start, size);
		return;
	}
	t = find_touch(start, size, is_any, NULL);
	if (t)
		report(SIM_V_UNSEEN, "taken away", t, start, size);
}

static void forget_in(struct touch **link, uint64_t start, uint64_t size)
{
	while (*link) {
		if ((*link)->seq <= (*link)->stream->completed &&
		    (*link)->start >= start &&
		    (*link)->start + (*link)->size <= start + size)
			drop_touch(link);
		else
			link = &(*link)->next;
	}
}

void sim_judge_forget(uint64_t start, uint64_t size)
{
	uint64_t page = start >> PAGE_BITS;
	uint64_t last = (start + size - 1) >> PAGE_BITS;
	unsigned i;

	if (last - page >= N_BUCKETS) {
		for (i = 0; i < N_BUCKETS; i++)
			forget_in(&buckets[i], start, size);
	} else {
		for (; page <= last; page++)
			forget_in(bucket_of(page), start, size);
	}
	forget_in(&wide, start, size);
}

static bool add_heeded(const struct touch *t, void *clock)
{
	if (t->heeded)
		sim_vclock_add(clock, t->stream, t->heeded);
	return false;
}

void sim_judge_heeded(uint64_t start, uint64_t size, struct sim_vclock *clock)
{
	find_touch(start, size, add_heeded, clock);
}

/* ---- announced ranges ------------------------------------------------ */

void sim_note_alloc(uint64_t ptr, size_t size)
{
	const struct touch *t = NULL;
	struct note *note;

	if (!ptr || !size)
		return;
	sim_lock();
	note = sim_zalloc(sizeof(*note));
	note->range.start = ptr;
	note->range.size = size;
	note->id = ++last_note;
	if (!sim_range_insert(&notes, &note->range)) {
		const struct sim_range *other =
			sim_range_overlap(&notes, ptr, size);

		sim_violation(SIM_V_OVERLAP,
			      "%#llx+%#zx is handed out while "
			      "%#llx+%#llx lives",
			      (unsigned long long)ptr, size,
			      (unsigned long long)other->start,
			      (unsigned long long)other->size);
		free(note);
		sim_unlock();
		return;
	}
	if (mode == SIM_JUDGE_COMPLETE && !sim_config.judge_off)
		t = find_touch(ptr, size, is_any, NULL);
	if (t)
		report(SIM_V_HANDOUT, "handed out", t, ptr, size);
	sim_unlock();
}

void sim_note_free(uint64_t ptr)
{
	struct sim_range *range;

	if (!ptr)
		return;
	sim_lock();
	range = sim_range_find(&notes, ptr);
	if (range && range->start == ptr) {
		sim_range_remove(&notes, range);
		free(range);
	} else {
		sim_violation(SIM_V_RULE,
			      "%#llx is given back, but was not "
			      "handed out",
			      (unsigned long long)ptr);
	}
	sim_unlock();
}

void sim_judge_notes(uint64_t *n_out, uint64_t *bytes_out)
{
	*n_out = notes.n;
	*bytes_out = notes.bytes;
}

enum sim_judge_mode sim_judge_mode(enum sim_judge_mode new)
{
	enum sim_judge_mode before;

	sim_lock();
	before = mode;
	mode = new;
	sim_unlock();
	return before;
}

/* ---- counts ---------------------------------------------------------- */

unsigned long sim_violations_of(enum sim_violation kind)
{
	unsigned long n;

	sim_lock();
	n = counts[kind];
	sim_unlock();
	return n;
}

unsigned long sim_violations(void)
{
	unsigned long n = 0;
	unsigned i;

	sim_lock();
	for (i = 0; i < SIM_V_KINDS; i++)
		n += i == SIM_V_BAD_FREE ? 0 : counts[i];
	sim_unlock();
	return n;
}

void sim_violations_clear(void)
{
	sim_lock();
	memset(counts, 0, sizeof(counts));
	last_text[0] = '\0';
	sim_unlock();
}

size_t sim_violation_text(char *buf, size_t size)
{
	size_t n;

	sim_lock();
	n = strlen(last_text);
	if (size)
		snprintf(buf, size, "%s", last_text);
	sim_unlock();
	return n;
}

void sim_violations_quiet(bool q)
{
	sim_lock();
	quiet = q;
	sim_unlock();
}

void sim_judge_reset(void)
{
	struct sim_range *range;
	unsigned i;

	for (i = 0; i < N_BUCKETS; i++)
		while (buckets[i])
			drop_touch(&buckets[i]);
	while (wide)
		drop_touch(&wide);
	while ((range = sim_range_next(&notes, 0))) {
		sim_range_remove(&notes, range);
		free(range);
	}
	memset(counts, 0, sizeof(counts));
	last_text[0] = '\0';
	quiet = false;
	sweep_at = 65536;
	mode = sim_config.judge_ordered ? SIM_JUDGE_ORDERED
					: SIM_JUDGE_COMPLETE;
}
