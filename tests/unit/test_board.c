/* SPDX-License-Identifier: MIT
 *
 * Processes that find each other: who is asked, waited for and answers. Their
 * slots and segment: test_slots.
 */

#include "base/clock.h"
#include "board_test.h"

static void test_all_on_the_device_are_asked(void **state)
{
	pid_t a = neighbour(ANSWERS, 10), b = neighbour(ANSWERS, 10);
	pid_t other = neighbour(ANSWERS, 20);

	(void)state;
	assert_int_equal(ask(device(10), 5000), 2 * GIVEN);
	assert_int_equal(n_asked, 2);
	assert_int_equal(ask(device(10), 5000), 2 * GIVEN);
	/* a byte for each one that has gone, once */
	end(a);
	assert_int_equal(ask(device(10), 5000), GIVEN + 1);
	assert_int_equal(ask(device(10), 5000), GIVEN);
	end(b);
	assert_int_equal(ask(device(10), 5000), 1);
	assert_int_equal(ask(device(10), 5000), 0);
	assert_int_equal(n_asked, 0);
	assert_int_equal(ask(0, 5000), 0);
	end(other);
}

static void test_own_pools_are_not_asked(void **state)
{
	uint32_t number;

	(void)state;
	vs_board_show(0, device(30));
	assert_int_equal(ask(device(30), 5000), 0);
	assert_false(vs_board_is_asked(0, &number));
	vs_board_show(0, 0);
}

static void test_an_answer_is_waited_for(void **state)
{
	pid_t pid = neighbour(ANSWERS_LATE, 40);

	(void)state;
	assert_int_equal(ask(device(40), 1), 0);
	assert_true(ask(device(40), 5000) > 0);
	end(pid);
}

/* In a child: after `delay_ms`; whether it was given any, to the status. */
static pid_t ask_beside(uint64_t named, unsigned delay_ms, uint64_t ms)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	vs_board_forked();
	vs_board_join();
	usleep(delay_ms * 1000);
	_exit(ask(named, ms) > 0 ? 0 : 1);
}

/* While one ask follows the other somebody slow is not taken for deaf. */
static void test_the_slow_are_not_deaf(void **state)
{
	pid_t pid = neighbour(ANSWERS_LATE, 45), beside[6];

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		beside[i] = ask_beside(device(45), i * 700, 10000);
	usleep(3900000);
	assert_int_equal(ask(device(45), 5000) % GIVEN, 0);
	assert_int_equal(n_asked, 1);
	for (unsigned i = 0; i < 6; i++)
		expect_served(beside[i]);
	end(pid);
}

/* What was given for one ask is seen by another that came before it was. */
static void test_what_is_given_once_is_seen_by_two(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		pid_t pid = neighbour(ANSWERS_ONCE, 48), beside;

		if (i == 0) /* who was not asked for long is not deaf */
			usleep(2700000);
		kill(pid, SIGSTOP);
		waitpid(pid, NULL, WUNTRACED); /* it is */
		beside = ask_beside(device(48), 0, 10000);
		usleep(50000);
		if (fork() == 0) {
			usleep(50000);
			kill(pid, SIGCONT);
			_exit(0);
		}
		assert_int_equal(ask(device(48), 5000), GIVEN);
		expect_served(beside);
		wait(NULL);
		end(pid);
	}
}

/* Nor is who was stopped with the one who asks, as a container is. */
static void test_the_stopped_are_waited_for(void **state)
{
	pid_t pid = neighbour(ANSWERS_LATE, 49);
	pid_t beside = ask_beside(device(49), 0, 1500);

	(void)state;
	usleep(300000);
	kill(pid, SIGSTOP);
	kill(beside, SIGSTOP);
	usleep(2000000);
	kill(beside, SIGCONT);
	usleep(20000);
	kill(pid, SIGCONT);
	expect_served(beside);
	end(pid);
}

/* One who does not answer costs some seconds once, not each time. */
static void test_the_deaf_are_waited_for_once(void **state)
{
	pid_t pid = neighbour(IS_DEAF, 50);
	uint64_t began = vs_clock_ms();

	(void)state;
	assert_int_equal(ask(device(50), 2600), 0);
	assert_in_range(vs_clock_ms() - began, 2600, 6000);
	began = vs_clock_ms();
	for (int i = 0; i < 100; i++) {
		assert_int_equal(ask(device(50), 2600), 0);
		assert_int_equal(n_asked, 0);
	}
	assert_in_range(vs_clock_ms() - began, 0, 1000);
	end(pid);
}

static void test_who_leaves_or_dies_is_not_waited_for(void **state)
{
	pid_t gone = neighbour(LEAVES, 60), dying = neighbour(ANSWERS, 60);
	uint64_t began = vs_clock_ms();

	(void)state;
	assert_int_equal(ask(device(60), 20000), GIVEN);
	end(dying);
	ask(device(60), 20000);
	/* reaped at once, or not; what it had is free then */
	signal(SIGCHLD, SIG_IGN);
	neighbour(DIES_WHEN_ASKED, 70);
	assert_true(ask(device(70), 20000) > 0);
	signal(SIGCHLD, SIG_DFL);
	dying = neighbour(DIES_WHEN_ASKED, 70);
	assert_true(ask(device(70), 20000) > 0);
	end(dying);
	assert_in_range(vs_clock_ms() - began, 0, 10000);
	end(gone);
}

/* Nor is each of many that are gone waited for a moment. */
static void test_the_gone_cost_no_time(void **state)
{
	pid_t gone[100];
	uint64_t began;

	(void)state;
	for (int i = 0; i < 100; i++)
		gone[i] = neighbour(ANSWERS, 84);
	for (int i = 0; i < 100; i++)
		end(gone[i]);
	began = vs_clock_ms();
	ask(device(84), 5000);
	assert_int_equal(n_asked, 100);
	assert_in_range(vs_clock_ms() - began, 0, 500);
}

static void test_the_bell(void **state)
{
	uint32_t rung = vs_board_rung();

	(void)state;
	vs_board_sleep(rung, 1);
	vs_board_ring();
	assert_int_equal(vs_board_rung(), rung + 1);
	vs_board_sleep(rung, 0); /* rang since: returns */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup(test_##name, join)
		T(all_on_the_device_are_asked),
		T(own_pools_are_not_asked),
		T(an_answer_is_waited_for),
		T(the_slow_are_not_deaf),
		T(what_is_given_once_is_seen_by_two),
		T(the_stopped_are_waited_for),
		T(the_deaf_are_waited_for_once),
		T(who_leaves_or_dies_is_not_waited_for),
		T(the_gone_cost_no_time),
		T(the_bell),
#undef T
	};

	alarm(120);
	/* other programs under the shim, as of other tests, have slots, too */
	child_unshare_ipc(0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
