/* SPDX-License-Identifier: MIT */
#include "turns.h"

#include <pthread.h>

#include "../e2e/victim.h"

int me;

static uint64_t state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static void (*turn_does)(void); /* what the thread `me` is to do */
static bool is_over, thread_ends;
static pthread_t threads[N_THREADS];

void set_seed(const char *text)
{
	state = strtoull(text, NULL, 0);
}

uint32_t chance(uint32_t n)
{
	return victim_random(&state) % n;
}

static void *thread(void *number)
{
	int self = (int)(intptr_t)number;

	pthread_mutex_lock(&lock);
	while (!is_over) {
		if (turn_does && me == self) {
			turn_does();
			turn_does = NULL;
			pthread_cond_broadcast(&passed);
			if (thread_ends)
				break;
		}
		pthread_cond_wait(&passed, &lock);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void start_thread(int number)
{
	CHECK(pthread_create(&threads[number], NULL, thread,
			     (void *)(intptr_t)number) == 0);
}

void start_threads(void)
{
	for (int i = 0; i < N_THREADS; i++)
		start_thread(i);
}

void end_this_thread(void)
{
	thread_ends = true;
}

void give_turn(int to, void (*does)(void))
{
	pthread_mutex_lock(&lock);
	me = to;
	turn_does = does;
	pthread_cond_broadcast(&passed);
	while (turn_does)
		pthread_cond_wait(&passed, &lock);
	pthread_mutex_unlock(&lock);
	if (!thread_ends)
		return;
	pthread_join(threads[to], NULL);
	thread_ends = false;
	start_thread(to);
}

void give_each(void (*does)(void))
{
	for (int i = 0; i < N_THREADS; i++)
		give_turn(i, does);
}

void give_turns(int n, void (*does)(void))
{
	for (int i = 0; i < n; i++) {
		int t = (int)chance(N_THREADS);

		printf("%d t%d", i, t);
		give_turn(t, does);
		printf("\n");
		fflush(stdout);
	}
}

void end_threads(void)
{
	pthread_mutex_lock(&lock);
	is_over = true;
	pthread_cond_broadcast(&passed);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
}
