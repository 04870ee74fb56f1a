/* SPDX-License-Identifier: MIT */
#include "report/signal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/fmt.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/sys.h"
#include "report/dump.h"
#include "report/service.h"

static atomic_flag is_installed = ATOMIC_FLAG_INIT;
static pid_t owner; /* the process that installed the handlers */

/* A process that is neither this one nor one it comes from. */
static bool is_from_stranger(const siginfo_t *info)
{
	pid_t sender = info->si_pid;

	if (info->si_code != SI_USER && info->si_code != SI_QUEUE &&
	    info->si_code != SI_TKILL)
		return false; /* a timer's, or of a file */
	return sender != vs_sys_getpid() && sender != vs_sys_getppid() &&
	       sender != owner;
}

typedef void handler(int number, siginfo_t *info, void *context);

/*
 * Whether the kernel called it. A handler that the program has put in its place
 * since may call it on, as the one that was there before, and with nothing but
 * the number. A program that puts it back by signal() takes away that the
 * kernel tells who sent it.
 */
static bool is_installed_now(int number, handler *ours, bool *is_told_out)
{
	struct sigaction now;

	if (sigaction(number, NULL, &now) || now.sa_sigaction != ours)
		return false;
	*is_told_out = now.sa_flags & SA_SIGINFO;
	return true;
}

/*
 * Deals with a signal in a forked child, see signal.h; false: it is none. That
 * it would end the child is for the handler that took over to decide.
 */
static bool is_childs(int number, const siginfo_t *info, handler *ours)
{
	const struct sigaction usual = {.sa_handler = SIG_DFL};
	bool is_told;

	if (vs_sys_getpid() == owner)
		return false;
	if (is_installed_now(number, ours, &is_told) &&
	    !(is_told && is_from_stranger(info))) {
		sigaction(number, &usual, NULL);
		/* blocked until the handler returns */
		vs_sys_kill(vs_sys_getpid(), number);
	}
	return true;
}

static void on_stats(int number, siginfo_t *info, void *unused)
{
	int saved_errno = errno;

	(void)unused;
	if (!is_childs(number, info, on_stats))
		vs_dump_write("signal");
	errno = saved_errno;
}

static void on_trim(int number, siginfo_t *info, void *unused)
{
	int saved_errno = errno;

	(void)unused;
	if (!is_childs(number, info, on_trim))
		vs_service_post_trim();
	errno = saved_errno;
}

/*
 * Puts back what ours replaced. The program may set handlers meanwhile: what
 * comes to light when one is put in place, and neither was ours nor is what was
 * put there last, is newer than that and has its place.
 */
static void give_back(int number, struct sigaction put, handler *ours)
{
	handler *expected = ours;
	struct sigaction seen;

	while (!sigaction(number, &put, &seen) &&
	       seen.sa_sigaction != expected) {
		expected = put.sa_sigaction;
		put = seen;
	}
}

/*
 * Sets `ours` where nothing is set, and tells what was. Asked first, so that a
 * handler of the program's never misses a signal; but another thread may set
 * one between the two calls, and it must not be lost.
 */
static bool take(int number, handler *ours, struct sigaction *old_out)
{
	struct sigaction action = {.sa_flags = SA_RESTART | SA_ONSTACK |
					       SA_SIGINFO};

	if (sigaction(number, NULL, old_out))
		return false;
	if (old_out->sa_handler != SIG_DFL)
		return true;
	action.sa_sigaction = ours;
	/*
	 * A handler of the program that jumps out of a dump would leave it
	 * unfinished for good.
	 */
	vs_sys_sigset_fill(&action.sa_mask);
	if (sigaction(number, &action, old_out))
		return false;
	if (old_out->sa_handler != SIG_DFL)
		give_back(number, *old_out, ours);
	return true;
}

/*
 * `knob` names the variable that would choose another signal. Some runtimes
 * handle these in each of their programs (Go both, Java USR2, Node.js USR1),
 * whose standard error stays as it is unless somebody asked for the signal.
 */
static void install(int number, handler *ours, const char *knob)
{
	struct sigaction old;
	char text[24];
	struct vs_fmt name = vs_fmt_start(text, sizeof(text));

	vs_parse_signal_name(number, &name);
	if (!take(number, ours, &old))
		vs_warn("%s: %s cannot be caught", knob, text);
	else if (old.sa_handler != SIG_DFL)
		vs_log(vs_knob_source_of(knob) == VS_FROM_DEFAULT ? VS_LOG_INFO
								  : VS_LOG_WARN,
		       "%s: %s is %s by the program and stays so; "
		       "choose another signal or none",
		       knob, text,
		       old.sa_handler == SIG_IGN ? "ignored" : "handled");
}

void vs_signal_install(void)
{
	int stats = vs_knobs.stats_signal;
	int trim = vs_knobs.trim_signal;

	if (atomic_flag_test_and_set(&is_installed))
		return;
	vs_dump_init();
	owner = vs_sys_getpid();
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
