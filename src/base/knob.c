/* SPDX-License-Identifier: MIT */
#include "base/knob.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/fmt.h"
#include "base/log.h"
#include "base/parse.h"

/* Texts of all values that the environment gives: a path and a few words. */
#define TEXT_BYTES 16384
/* Names above this length are no slip of the pen. */
#define NEAR_MAX 64

enum type { SIZE, MS, BOOL, SIGNAL, LEVEL, TEXT, CHOICE };

#define LEVELS "none|error|warn|info|debug"

/* TYPE column: the enum above and the words of a choice. */
#define TYPE_SIZE SIZE, NULL
#define TYPE_MS MS, NULL
#define TYPE_BOOL BOOL, NULL
#define TYPE_SIGNAL SIGNAL, NULL
#define TYPE_LEVEL LEVEL, LEVELS
#define TYPE_TEXT TEXT, NULL
#define TYPE_CHOICE(knob) CHOICE, VS_WORDS_##knob

struct vs_knobs vs_knobs;

static const struct row {
	const char *variable, *fallback, *help;
	uint64_t min, max;
	void *field;
	enum type type;
	const char *words;
} rows[] = {
#define KNOB(field, name, type, def, min, max, help)                           \
	{VS_KNOB_VARIABLE(name), def,	     help, min, max,                   \
	 &vs_knobs.field,	 TYPE_##type},
#include "knobs.def"
#undef KNOB
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static struct state {
	const char *value;
	enum vs_knob_source source;
	char allowed[48];
} states[N_ROWS];

/* The program may change its environment: values are copied. */
static char texts[TEXT_BYTES];
static size_t texts_used;
static char rank[12] = "0";
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* NULL when it does not fit. The last one can be given up by texts_used. */
static const char *keep_text(const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = texts + texts_used;

	if (size > sizeof(texts) - texts_used)
		return NULL;
	memcpy(copy, text, size);
	texts_used += size;
	return copy;
}

/* 0 as "0", 1 << 40 as "1T". */
static void put_size(struct vs_fmt *f, uint64_t v)
{
	static const char units[] = "KMGT";
	int unit = -1;

	while (v && v % 1024 == 0 && unit < 3) {
		v /= 1024;
		unit++;
	}
	vs_fmt_u64(f, v);
	if (unit >= 0)
		vs_fmt_char(f, units[unit]);
}

static void describe_allowed(const struct row *row, char *text, size_t size)
{
	struct vs_fmt f = vs_fmt_start(text, size);

	switch (row->type) {
	case SIZE:
		if (row->min == 0 && row->max == UINT64_MAX) {
			vs_fmt_str(&f, "size or %");
			break;
		}
		put_size(&f, row->min);
		vs_fmt_str(&f, "..");
		put_size(&f, row->max);
		vs_fmt_str(&f, " or %");
		break;
	case MS:
		vs_fmt_f(&f, "%llu..%llu", (unsigned long long)row->min,
			 (unsigned long long)row->max);
		break;
	case BOOL:
		vs_fmt_str(&f, "0|1|no|yes|off|on");
		break;
	case SIGNAL:
		vs_fmt_str(&f, "signal or none");
		break;
	case TEXT:
		vs_fmt_str(&f, "text");
		break;
	case LEVEL:
	case CHOICE:
		vs_fmt_str(&f, row->words);
		break;
	}
}

static bool is_in_range(const struct row *row, uint64_t v)
{
	return v >= row->min && v <= row->max;
}

/* Parses and checks; writes the row's field only when all is well. */
static bool set_field(const struct row *row, const char *text)
{
	struct vs_size size;
	uint64_t number;

	switch (row->type) {
	case SIZE:
		if (!vs_parse_size(text, &size) ||
		    !(size.is_percent || is_in_range(row, size.value)))
			return false;
		*(struct vs_size *)row->field = size;
		return true;
	case MS:
		if (!vs_parse_u64(text, &number) || !is_in_range(row, number))
			return false;
		*(uint64_t *)row->field = number;
		return true;
	case BOOL:
		return vs_parse_bool(text, row->field);
	case SIGNAL:
		return vs_parse_signal(text, row->field);
	case LEVEL:
	case CHOICE:
		return vs_parse_word(text, row->words, row->field);
	case TEXT:
		*(const char **)row->field = text;
		return true;
	}
	return false;
}

static void warn_rejected(size_t i, const char *text, const char *why)
{
	char shown[68];
	struct vs_fmt f = vs_fmt_start(shown, sizeof(shown) - 3);

	/* a long text must not push the range out of the line */
	vs_fmt_str(&f, text);
	if (f.len < strlen(text)) {
		f.size += 3;
		vs_fmt_str(&f, "...");
	}
	vs_warn("%s: \"%s\" is not allowed (%s); using \"%s\"",
		rows[i].variable, shown, why, rows[i].fallback);
}

/*
 * A set-user-ID program or its like, into which /etc/ld.so.preload brings the
 * shim: whoever starts it may not name files that its owner writes.
 */
static bool is_another_users(void)
{
	/* the C library's own name of getauxval */
	unsigned long __getauxval(unsigned long type);

	return __getauxval(AT_SECURE);
}

static void read_row(size_t i)
{
	const struct row *row = &rows[i];
	struct state *state = &states[i];
	const char *text = is_another_users() ? NULL : getenv(row->variable);
	size_t used = texts_used;
	const char *copy;

	describe_allowed(row, state->allowed, sizeof(state->allowed));
	state->value = row->fallback;
	state->source = VS_FROM_DEFAULT;
	set_field(row, row->fallback);
	if (!text || !*text)
		return;
	copy = keep_text(text);
	if (!copy || !set_field(row, copy)) {
		state->source = VS_FROM_REJECTED;
		warn_rejected(i, text, copy ? state->allowed : "too long");
		texts_used = used;
		return;
	}
	if (row->type == SIZE)
		((struct vs_size *)row->field)->is_given = true;
	state->value = copy;
	state->source = VS_FROM_ENV;
}

static bool is_known(const char *name, size_t len)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (strlen(rows[i].variable) == len &&
		    !memcmp(rows[i].variable, name, len))
			return true;
	return false;
}

static char upper(char c)
{
	return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/*
 * Insertions, deletions and replacements that make b of a; a name that is part
 * of the other (CHUNK, CHUNK_SIZE) is one step away.
 */
static unsigned distance(const char *a, const char *b)
{
	unsigned line[NEAR_MAX + 1];
	size_t n = strlen(b);

	if (strstr(a, b) || strstr(b, a))
		return 1;
	for (size_t j = 0; j <= n; j++)
		line[j] = (unsigned)j;
	for (size_t i = 1; a[i - 1]; i++) {
		unsigned diagonal = line[0];

		line[0] = (unsigned)i;
		for (size_t j = 1; j <= n; j++) {
			unsigned replace = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = line[j];
			line[j] =
				least(replace, least(line[j], line[j - 1]) + 1);
		}
	}
	return line[n];
}

/* The knob most like the variable `name`, which starts with VS_KNOB_PREFIX. */
static const char *nearest(const char *name)
{
	char wanted[NEAR_MAX + 1];
	struct vs_fmt f = vs_fmt_start(wanted, sizeof(wanted));
	unsigned best = ~0u;
	const char *found = rows[0].variable;

	for (name += strlen(VS_KNOB_PREFIX); *name; name++)
		vs_fmt_char(&f, upper(*name));
	for (size_t i = 0; i < N_ROWS; i++) {
		unsigned d;

		if (strlen(rows[i].variable) <= strlen(VS_KNOB_PREFIX))
			continue;
		d = distance(wanted, rows[i].variable + strlen(VS_KNOB_PREFIX));
		if (d < best) {
			best = d;
			found = rows[i].variable;
		}
	}
	/* VMMSHIM itself, by the name of its option of vmmshim-run */
	return distance(wanted, "MODE") < best ? "VMMSHIM" : found;
}

static void warn_unknown(void)
{
	for (char **entry = __environ; entry && *entry; entry++) {
		const char *equals = strchr(*entry, '=');
		char name[NEAR_MAX + 1];
		struct vs_fmt f = vs_fmt_start(name, sizeof(name));

		if (strncmp(*entry, VS_KNOB_PREFIX, strlen(VS_KNOB_PREFIX)) ||
		    !equals || !equals[1] ||
		    is_known(*entry, (size_t)(equals - *entry)))
			continue;
		for (const char *c = *entry; c < equals; c++)
			vs_fmt_char(&f, *c);
		vs_warn("%s: no such knob; the nearest is %s", name,
			nearest(name));
	}
}

/* The number that the launcher gave this process, for %r. */
static void read_rank(void)
{
	static const char *const variables[] = {"RANK", "OMPI_COMM_WORLD_RANK",
						"PMI_RANK", "SLURM_PROCID"};

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		const char *text = getenv(variables[i]);
		uint64_t number;

		/* a rank is part of file names: digits only */
		if (text && vs_parse_u64(text, &number) &&
		    number <= UINT32_MAX) {
			struct vs_fmt f = vs_fmt_start(rank, sizeof(rank));

			vs_fmt_u64(&f, number);
			return;
		}
	}
}

static void read_environment(void)
{
	size_t log_row = 0;

	for (size_t i = 0; i < N_ROWS; i++)
		if (rows[i].field == &vs_knobs.log)
			log_row = i;
	/* first, since it decides which of the warnings are shown */
	read_row(log_row);
	vs_log_level = vs_knobs.log;
	for (size_t i = 0; i < N_ROWS; i++)
		if (i != log_row && rows[i].type != TEXT)
			read_row(i);
	/* last: a long one leaves no room for others */
	for (size_t i = 0; i < N_ROWS; i++)
		if (rows[i].type == TEXT)
			read_row(i);
	if (is_another_users()) {
		vs_knobs.mode = VS_MODE_OFF;
		return;
	}
	warn_unknown();
	read_rank();
}

void vs_knob_init(void)
{
	pthread_once(&once, read_environment);
}

bool vs_knob_wants_help(void)
{
	if (!getenv(VS_KNOB_PREFIX "HELP"))
		return false;
	vs_knob_init();
	return vs_knobs.help;
}

bool vs_knob_row(size_t i, struct vs_knob_row *row_out)
{
	if (i >= N_ROWS)
		return false;
	vs_knob_init();
	*row_out = (struct vs_knob_row){
		.variable = rows[i].variable,
		.value = states[i].value,
		.fallback = rows[i].fallback,
		.allowed = states[i].allowed,
		.help = rows[i].help,
		.source = states[i].source,
	};
	return true;
}

enum vs_knob_source vs_knob_source_of(const char *variable)
{
	struct vs_knob_row row;

	for (size_t i = 0; vs_knob_row(i, &row); i++)
		if (strcmp(row.variable, variable) == 0)
			return row.source;
	return VS_FROM_DEFAULT;
}

const char *vs_knob_rank(void)
{
	return rank;
}

/* Whether `name` is one of the comma separated names; * at an end: prefix. */
static bool is_listed(const char *list, const char *name)
{
	while (list && *list) {
		size_t n = strcspn(list, ",");
		const char *item = list;

		list += n + (list[n] == ',');
		while (n && *item == ' ') {
			item++;
			n--;
		}
		while (n && item[n - 1] == ' ')
			n--;
		if (n && item[n - 1] == '*') {
			if (!strncmp(name, item, n - 1))
				return true;
		} else if (n && strlen(name) == n && !memcmp(name, item, n)) {
			return true;
		}
	}
	return false;
}

bool vs_knob_serves_program(const char *file, const char *name)
{
	if (is_listed(vs_knobs.exclude, file) ||
	    is_listed(vs_knobs.exclude, name))
		return false;
	return !vs_knobs.only || !*vs_knobs.only ||
	       is_listed(vs_knobs.only, file) || is_listed(vs_knobs.only, name);
}
