/* SPDX-License-Identifier: MIT */
#include "base/parse.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* The first n bytes, whatever the case; not strncasecmp, which has a locale. */
static bool is_same_n(const char *a, const char *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (lower(a[i]) != lower(b[i]))
			return false;
		if (!a[i])
			break;
	}
	return true;
}

static bool is_same(const char *a, const char *b)
{
	return is_same_n(a, b, strlen(a) + 1);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Digits at *p, at least one, and *p behind them. */
static bool take_digits(const char **p, uint64_t *value_out)
{
	uint64_t value = 0;

	if (!is_digit(**p))
		return false;
	for (; is_digit(**p); (*p)++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, **p - '0', &value))
			return false;
	*value_out = value;
	return true;
}

bool vs_parse_u64(const char *text, uint64_t *value_out)
{
	uint64_t value;

	if (!take_digits(&text, &value) || *text)
		return false;
	*value_out = value;
	return true;
}

/* "", "B", "K", "KB", "KiB", ...: log2 of the unit, -1 for anything else. */
static int unit_shift(const char *unit)
{
	static const char letters[] = "kmgt";
	const char *letter;

	if (!*unit || is_same(unit, "B"))
		return 0;
	letter = strchr(letters, lower(*unit));
	if (!letter)
		return -1;
	unit++;
	if (*unit && !is_same(unit, "B") && !is_same(unit, "iB"))
		return -1;
	return 10 * (int)(letter - letters + 1);
}

/* Digits behind the point as millionths; what is finer does not count. */
static bool take_millionths(const char **p, uint64_t *value_out)
{
	uint64_t value = 0;
	uint64_t place = 1000000;

	if (!is_digit(**p))
		return false;
	for (; is_digit(**p); (*p)++) {
		place /= 10;
		value += (uint64_t)(**p - '0') * place;
	}
	*value_out = value;
	return true;
}

bool vs_parse_size(const char *text, struct vs_size *size_out)
{
	uint64_t value;
	uint64_t millionths = 0;
	bool has_point;
	int shift;

	if (!take_digits(&text, &value))
		return false;
	has_point = *text == '.';
	if (has_point) {
		text++;
		if (!take_millionths(&text, &millionths))
			return false;
	}
	if (!strcmp(text, "%")) {
		if (has_point || value > 100)
			return false;
		*size_out =
			(struct vs_size){.value = value, .is_percent = true};
		return true;
	}
	if (*text == ' ')
		text++;
	shift = unit_shift(text);
	/* half a byte is a slip of the pen */
	if (shift < 0 || (has_point && shift == 0))
		return false;
	if (value > UINT64_MAX >> shift)
		return false;
	value <<= shift;
	/* below 10^6 * 2^40, no overflow; the sum is below the next unit */
	value += (millionths << shift) / 1000000;
	*size_out = (struct vs_size){.value = value};
	return true;
}

bool vs_parse_word(const char *text, const char *words, int *index_out)
{
	size_t len = strlen(text);

	for (int i = 0; *words; i++) {
		size_t n = strcspn(words, "|");

		if (n == len && is_same_n(words, text, n)) {
			*index_out = i;
			return true;
		}
		words += n;
		if (*words)
			words++;
	}
	return false;
}

bool vs_parse_bool(const char *text, bool *value_out)
{
	int i;

	if (!vs_parse_word(text, "0|1|no|yes|off|on|false|true", &i))
		return false;
	*value_out = i % 2;
	return true;
}

static const struct {
	const char *name;
	int number;
} signals[] = {
	{"HUP", SIGHUP},   {"INT", SIGINT},	{"QUIT", SIGQUIT},
	{"USR1", SIGUSR1}, {"USR2", SIGUSR2},	{"PIPE", SIGPIPE},
	{"ALRM", SIGALRM}, {"TERM", SIGTERM},	{"STKFLT", SIGSTKFLT},
	{"CHLD", SIGCHLD}, {"CONT", SIGCONT},	{"TSTP", SIGTSTP},
	{"TTIN", SIGTTIN}, {"TTOU", SIGTTOU},	{"URG", SIGURG},
	{"XCPU", SIGXCPU}, {"XFSZ", SIGXFSZ},	{"VTALRM", SIGVTALRM},
	{"PROF", SIGPROF}, {"WINCH", SIGWINCH}, {"IO", SIGIO},
	{"POLL", SIGPOLL}, {"PWR", SIGPWR},
};

/* "", "+3", "-3" as a number. */
static bool take_offset(const char *p, char sign, uint64_t *value_out)
{
	*value_out = 0;
	if (!*p)
		return true;
	return *p == sign && vs_parse_u64(p + 1, value_out);
}

static bool parse_realtime(const char *text, int *number_out)
{
	int low = SIGRTMIN, high = SIGRTMAX;
	uint64_t offset;

	if (is_same_n(text, "RTMIN", 5)) {
		if (!take_offset(text + 5, '+', &offset) ||
		    offset > (uint64_t)(high - low))
			return false;
		*number_out = low + (int)offset;
		return true;
	}
	if (is_same_n(text, "RTMAX", 5)) {
		if (!take_offset(text + 5, '-', &offset) ||
		    offset > (uint64_t)(high - low))
			return false;
		*number_out = high - (int)offset;
		return true;
	}
	return false;
}

/* By its number: one of the table or a real-time one. */
static bool parse_number(const char *text, int *number_out)
{
	uint64_t value;

	if (!vs_parse_u64(text, &value) || value > (uint64_t)SIGRTMAX)
		return false;
	if (value >= (uint64_t)SIGRTMIN) {
		*number_out = (int)value;
		return true;
	}
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if ((int)value == signals[i].number) {
			*number_out = (int)value;
			return true;
		}
	return false;
}

bool vs_parse_signal(const char *text, int *number_out)
{
	if (is_same(text, "none") || !strcmp(text, "0")) {
		*number_out = 0;
		return true;
	}
	if (is_digit(*text))
		return parse_number(text, number_out);
	if (is_same_n(text, "SIG", 3))
		text += 3;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (is_same(text, signals[i].name)) {
			*number_out = signals[i].number;
			return true;
		}
	return parse_realtime(text, number_out);
}

void vs_parse_signal_name(int number, struct vs_fmt *f)
{
	if (number >= SIGRTMIN) {
		vs_fmt_f(f, "SIGRTMIN+%d", number - SIGRTMIN);
		return;
	}
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (signals[i].number == number) {
			vs_fmt_f(f, "SIG%s", signals[i].name);
			return;
		}
	vs_fmt_f(f, "signal %d", number);
}
