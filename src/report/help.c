/* SPDX-License-Identifier: MIT
 *
 * help: VMMSHIM_HELP=1 prints every knob on stderr when a program starts,
 * whether it uses CUDA or not: that is how one asks the shim about itself. What
 * runs in every process before it uses CUDA (besides this the look at
 * descriptor 2 in base/log, and the handlers of forks that driver/loader and
 * hook/gate set) is to be little: so it does no more than look for the variable
 * unless it is there.
 */
#include "config.h"

#include <string.h>
#include <unistd.h>

#include "base/fmt.h"
#include "base/knob.h"

#define INDENT "    "
#define WIDTH 79

static void print(struct vs_fmt *f)
{
	vs_fmt_write(f, STDERR_FILENO);
	*f = vs_fmt_start(f->text, f->size);
}

/* `text` in lines of WIDTH, cut between words. */
static void put_wrapped(struct vs_fmt *f, const char *text)
{
	size_t column = WIDTH;

	while (*text) {
		size_t n = strcspn(text, " ");

		if (column + 1 + n > WIDTH) {
			vs_fmt_str(f, "\n" INDENT);
			column = strlen(INDENT);
		} else {
			vs_fmt_char(f, ' ');
			column++;
		}
		column += n;
		for (; n; n--)
			vs_fmt_char(f, *text++);
		while (*text == ' ')
			text++;
	}
}

/* In parts: the user's may be longer than the buffer. */
static void put_value(struct vs_fmt *f, const char *value)
{
	char part[256];

	while (*value) {
		struct vs_fmt p = vs_fmt_start(part, sizeof(part));

		vs_fmt_str(&p, value); /* what fits of it */
		value += p.len;
		vs_fmt_line(f, part);
		print(f);
	}
}

static void print_knob(struct vs_fmt *f, const struct vs_knob_row *row)
{
	static const char *const sources[] = {
		[VS_FROM_DEFAULT] = "default",
		[VS_FROM_ENV] = "environment",
		[VS_FROM_REJECTED] = "default; the environment's was rejected",
	};

	vs_fmt_f(f, "%s=", row->variable);
	put_value(f, row->value);
	vs_fmt_f(f, " (%s)\n" INDENT "allowed: %s; default: %s",
		 sources[row->source], row->allowed,
		 *row->fallback ? row->fallback : "unset");
	put_wrapped(f, row->help);
	vs_fmt_char(f, '\n');
	print(f);
}

static void __attribute__((constructor)) help(void)
{
	static char text[8192];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));
	struct vs_knob_row row;

	if (!vs_knob_wants_help())
		return;
	vs_fmt_f(&f, "libvmmshim %s, environment variables:\n",
		 PACKAGE_VERSION);
	print(&f);
	for (size_t i = 0; vs_knob_row(i, &row); i++)
		print_knob(&f, &row);
}
