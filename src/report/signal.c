/* SPDX-License-Identifier: MIT */
#include "report/signal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/fmt.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/parse.h"
#include "report/dump.h"
#include "report/service.h"

static atomic_flag is_installed = ATOMIC_FLAG_INIT;

static void on_stats(int number)
{
	(void)number;
	vs_dump_write("signal"); /* keeps errno */
}

static void on_trim(int number)
{
	int saved_errno = errno;

	(void)number;
	vs_service_post_trim();
	errno = saved_errno;
}

/* `knob` names the variable that would choose another signal. */
static void install(int number, void (*handler)(int), const char *knob)
{
	struct sigaction action = {.sa_flags = SA_RESTART | SA_ONSTACK};
	struct sigaction old;
	char text[24];
	struct vs_fmt name = vs_fmt_start(text, sizeof(text));

	vs_parse_signal_name(number, &name);
	if (sigaction(number, NULL, &old)) {
		vs_warn("%s: %s cannot be caught", knob, text);
		return;
	}
	if (old.sa_handler != SIG_DFL) {
		vs_warn("%s: %s is %s by the program and stays so; "
			"choose another signal or none",
			knob, text,
			old.sa_handler == SIG_IGN ? "ignored" : "handled");
		return;
	}
	action.sa_handler = handler;
	/*
	 * A handler of the program that jumps out of a dump would leave it
	 * unfinished for good.
	 */
	sigfillset(&action.sa_mask);
	sigaction(number, &action, NULL);
}

void vs_signal_install(void)
{
	int stats = vs_knobs.stats_signal;
	int trim = vs_knobs.trim_signal;

	if (atomic_flag_test_and_set(&is_installed))
		return;
	vs_dump_init();
	if (stats && stats == trim) {
		char text[24];
		struct vs_fmt name = vs_fmt_start(text, sizeof(text));

		vs_parse_signal_name(trim, &name);
		vs_warn("VMMSHIM_TRIM_SIGNAL: %s is VMMSHIM_STATS_SIGNAL "
			"already; no signal trims",
			text);
		trim = 0;
	}
	if (stats)
		install(stats, on_stats, "VMMSHIM_STATS_SIGNAL");
	if (trim)
		install(trim, on_trim, "VMMSHIM_TRIM_SIGNAL");
}
