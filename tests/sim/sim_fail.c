/* SPDX-License-Identifier: MIT */
/*
 * Failures that a test asked for.  A rule marks the functions it means once,
 * so that the check in each call is one look at a byte.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_call.h"

#define MAX_RULES 32
/* Instead of a CUresult: the process dies as by kill -9. */
#define KILL (-9)

struct rule {
	bool meant[SIM_N_FUNCTIONS];
	unsigned long seen;	    /* calls so far */
	unsigned long first, count; /* count 0: for ever */
	uint64_t chance;	    /* of 2^32, or 0: not random */
	uint64_t state;
	int code;
};

static struct rule rules[MAX_RULES];
static unsigned n_rules;
static unsigned long n_failures;

static bool draw(struct rule *rule)
{
	/* splitmix64: any seed is good */
	uint64_t z = rule->state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z >> 32) < rule->chance;
}

static bool applies(struct rule *rule)
{
	rule->seen++;
	if (rule->chance)
		return draw(rule);
	return rule->seen >= rule->first &&
	       (!rule->count || rule->seen - rule->first < rule->count);
}

CUresult sim_fail_check(enum sim_id id)
{
	CUresult result = CUDA_SUCCESS;
	unsigned i;

	for (i = 0; i < n_rules; i++)
		if (rules[i].meant[id] && applies(&rules[i]) &&
		    result == CUDA_SUCCESS)
			result = (CUresult)rules[i].code;
	if ((int)result == KILL)
		raise(SIGKILL);
	if (result != CUDA_SUCCESS)
		n_failures++;
	return result;
}

static void mark(enum sim_id id, void *arg)
{
	((struct rule *)arg)->meant[id] = true;
}

/* With the lock held.  NULL for an unknown name or too many rules. */
static struct rule *add_rule(const char *name, int code)
{
	struct rule *rule = &rules[n_rules];

	if (n_rules == MAX_RULES)
		return NULL;
	memset(rule, 0, sizeof(*rule));
	if (!sim_call_match(name, mark, rule))
		return NULL;
	rule->code = code;
	n_rules++;
	return rule;
}

int sim_fail_many(const char *name, unsigned long n, unsigned long count,
		  int code)
{
	struct rule *rule;

	sim_lock();
	rule = add_rule(name, code);
	if (rule) {
		rule->first = n;
		rule->count = count;
	}
	sim_unlock();
	return rule ? 0 : -1;
}

int sim_fail(const char *name, unsigned long n, int code)
{
	return sim_fail_many(name, n, 1, code);
}

int sim_fail_random(const char *name, double p, unsigned seed, int code)
{
	struct rule *rule;

	sim_lock();
	rule = add_rule(name, code);
	if (rule) {
		rule->chance = (uint64_t)(p * 4294967296.0);
		rule->state = seed;
		rule->first = (unsigned long)-1;
	}
	sim_unlock();
	return rule ? 0 : -1;
}

void sim_fail_clear(void)
{
	sim_lock();
	n_rules = 0;
	sim_unlock();
}

unsigned long sim_failures(void)
{
	unsigned long n;

	sim_lock();
	n = n_failures;
	sim_unlock();
	return n;
}

void sim_fail_reset(void)
{
	n_rules = 0;
	n_failures = 0;
}

/* NAME:N:CODE[:COUNT] */
static bool read_rule(char *text)
{
	char *save, *name = strtok_r(text, ":", &save);
	char *n = strtok_r(NULL, ":", &save);
	char *code = strtok_r(NULL, ":", &save);
	char *count = strtok_r(NULL, ":", &save);
	struct rule *rule;

	if (!name || !n || !code)
		return false;
	rule = add_rule(name, strcmp(code, "kill") == 0 ? KILL : atoi(code));
	if (!rule)
		return false;
	rule->first = strtoul(n, NULL, 10);
	rule->count = count ? strtoul(count, NULL, 10) : 1;
	return true;
}

void sim_fail_read_env(void)
{
	const char *env = sim_env("SIM_FAIL");
	char *copy, *item, *save;

	if (!env)
		return;
	copy = strdup(env);
	for (item = strtok_r(copy, ",", &save); item;
	     item = strtok_r(NULL, ",", &save))
		if (!read_rule(item))
			sim_say("sim: bad rule in SIM_FAIL: %s", item);
	free(copy);
}
