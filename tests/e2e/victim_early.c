/* SPDX-License-Identifier: MIT
 *
 * victim_early: a second thread has memory while the first is not back from
 * cuInit yet.
 */
#include <pthread.h>

#include "victim_link.h"

static pthread_t first;
static bool is_initialized;

static void *use(void *unused)
{
	victim_start(0);
	victim_free(victim_alloc(1000));
	return unused;
}

/* Before the call is made: at the one that follows cuInit. */
static void on_call(const char *call)
{
	pthread_t second;

	if (!pthread_equal(pthread_self(), first))
		return;
	if (!is_initialized) {
		is_initialized = !strcmp(call, "cuInit");
		return;
	}
	sim_client_on_call(NULL);
	CHECK(pthread_create(&second, NULL, use, NULL) == 0);
	CHECK(pthread_join(second, NULL) == 0);
	puts("early");
}

int main(void)
{
	first = pthread_self();
	sim_client_on_call(on_call);
	victim_start(0);
	victim_free(victim_alloc(77777));
	puts("late");
	return 0;
}
