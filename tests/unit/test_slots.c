/* SPDX-License-Identifier: MIT
 *
 * The segment in which processes find each other, and their slots in it: who
 * takes them over, and who removes it.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/shm.h>

#include "board_test.h"

/* 300 processes one after the other, more than there are slots. */
static void test_slots_are_taken_over(void **state)
{
	(void)state;
	for (int i = 0; i < 300; i++) {
		pid_t pid = neighbour(ANSWERS, 80);

		assert_int_equal(ask(device(80), 5000), GIVEN);
		end(pid);
	}
}

/* As many as there are slots have ended, and nobody has reaped them. */
static int join_after_zombies(void)
{
	uint64_t named = device(82);

	vs_board_join();
	for (int i = 0; i < 130; i++)
		zombie(i % 2 ? LEAVES : ANSWERS, 82);
	neighbour(ANSWERS, 82);
	return ask(named, 5000) < GIVEN;
}

static void test_slots_of_zombies_are_taken_over(void **state)
{
	(void)state;
	apart(0, join_after_zombies);
}

/* Who has left says nothing in a slot that is another's by now. */
static int show_after_leaving(void)
{
	uint64_t named = device(88);

	vs_board_join();
	neighbour(ANSWERS, 89); /* else the segment goes, too */
	vs_board_leave();
	neighbour(ANSWERS, 88);
	vs_board_show(3, 0);
	vs_board_forked();
	vs_board_join();
	return ask(named, 5000) != GIVEN;
}

static void test_who_has_left_is_silent(void **state)
{
	(void)state;
	apart(0, show_after_leaving);
}

/* A child made without fork's handlers is not its parent. */
static void test_such_a_child_closes_nothing(void **state)
{
	uint64_t own = device(90);
	pid_t pid, other;
	int status;

	(void)state;
	vs_board_show(0, own);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		vs_board_leave();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* still there to be asked, though nobody answers */
	other = fork();
	if (other == 0) {
		vs_board_forked();
		vs_board_join();
		ask(own, 1);
		_exit(n_asked);
	}
	assert_int_equal(waitpid(other, &status, 0), other);
	assert_int_equal(WEXITSTATUS(status), 1);
	vs_board_show(0, 0);
}

/* Whoever calls exec, or joins again, is there once. */
static void test_a_process_has_one_slot(void **state)
{
	pid_t pid = neighbour(ANSWERS, 95), two = neighbour(ANSWERS, 95);

	(void)state;
	vs_board_forked();
	vs_board_join(); /* behind both */
	vs_board_show(0, device(99));
	end(pid); /* a slot before it is free now */
	vs_board_forked();
	vs_board_join();
	ask(device(99), 5000);
	assert_int_equal(n_asked, 0);
	end(two);
}

/* How many segments there are; the size of one of them. */
static int segments(size_t *size_out)
{
	struct shm_info all;
	struct shmid_ds one;
	int last = shmctl(0, SHM_INFO, (struct shmid_ds *)&all);

	for (int i = 0; i <= last; i++)
		if (shmctl(i, SHM_STAT, &one) >= 0)
			*size_out = one.shm_segsz;
	return all.used_ids;
}

static int leave_one_after_another(void)
{
	size_t size;
	pid_t pid;

	vs_board_join();
	pid = fork();
	if (pid == 0) {
		vs_board_forked();
		vs_board_join();
		vs_board_leave();
		_exit(segments(&size) != 1);
	}
	expect_served(pid);
	/* who has forked meanwhile is not there */
	pid = fork();
	if (pid == 0) {
		vs_board_forked();
		pause();
	}
	usleep(50000);
	vs_board_leave();
	vs_board_forked();
	end(pid);
	return segments(&size);
}

static void test_the_last_to_leave_removes_it(void **state)
{
	(void)state;
	apart(0, leave_one_after_another);
}

/* There a segment of the program's has the number. */
static int leave_from_another_namespace(void)
{
	int id;

	vs_board_join();
	if (!child_unshare_ipc(0))
		return CHILD_NOT_HERE;
	id = shmget(1, 4096, IPC_CREAT | 0600);
	vs_board_leave();
	return id < 0 || shmget(1, 0, 0) != id;
}

static void test_no_segment_of_the_programs_is_removed(void **state)
{
	(void)state;
	apart(0, leave_from_another_namespace);
}

/* Of a PID namespace whose only process was killed; others' stay. */
static int sweep(void)
{
	size_t size = 0;
	pid_t pid = neighbour(ANSWERS, 0);
	int other, n;

	end(pid);
	n = segments(&size);
	other = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
	shmget(IPC_PRIVATE, size + 1, IPC_CREAT | 0600);
	vs_board_join(); /* not in that namespace */
	return n != 1 || segments(&size) != 3 ||
	       shmctl(other, IPC_RMID, NULL) != 0;
}

static void test_what_the_killed_left_is_removed(void **state)
{
	(void)state;
	apart(CLONE_NEWPID, sweep);
}

/* How many segments this process has, and the last of them. */
static int attached(int *id_out)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "/SYSV") &&
		     sscanf(line, "%*s %*s %*s %*s %d /SYSV", id_out) == 1;
	fclose(maps);
	return n;
}

/* Whether others find the segment that this process has, if it has one. */
static bool is_found(void)
{
	struct shmid_ds about = {.shm_perm.mode = 0};
	int id;

	if (attached(&id) > 0)
		shmctl(id, IPC_STAT, &about);
	return !(about.shm_perm.mode & SHM_DEST);
}

/* Returns how many there were that could be found. */
static int remove_segments(void)
{
	struct shm_info all;
	struct shmid_ds one;
	int last = shmctl(0, SHM_INFO, (struct shmid_ds *)&all), n = 0;

	for (int i = 0; i <= last; i++) {
		int id = shmctl(i, SHM_STAT, &one);

		n += id >= 0 && !(one.shm_perm.mode & SHM_DEST);
		shmctl(id, IPC_RMID, NULL);
	}
	return n;
}

/* Where the segment that this process has names another; or NULL. */
static volatile uint32_t *find_name(pid_t pid)
{
	struct shmid_ds about;
	uint32_t *words;
	int id;

	if (attached(&id) != 1 || shmctl(id, IPC_STAT, &about) != 0)
		return NULL;
	words = shmat(id, NULL, 0);
	for (size_t i = 0; i < about.shm_segsz / sizeof(*words); i++)
		if (words[i] == (uint32_t)pid)
			return &words[i];
	return NULL;
}

/* A process is stopped just as it takes a slot over, and another comes. */
static int come_amid_a_claim(void)
{
	volatile uint32_t *name;
	pid_t gone;

	vs_board_join();
	gone = neighbour(LEAVES, 97);
	name = find_name(gone);
	if (!name)
		return 1;
	end(gone);
	*name = UINT32_MAX;
	neighbour(ANSWERS, 97);
	return *name != UINT32_MAX;
}

static void test_a_slot_is_taken_over_by_one(void **state)
{
	(void)state;
	apart(0, come_amid_a_claim);
}

/* Somebody removes the segment, as for a user who logs out. */
static int meet_again(void)
{
	uint64_t named = device(86);
	bool was_missed, is_missed;
	pid_t pid;

	vs_board_join();
	pid = neighbour(FOLLOWS, 86);
	was_missed = vs_board_is_missed();
	if (remove_segments() != 1)
		return 1;
	is_missed = vs_board_is_missed();
	vs_board_join();
	for (int i = 0; i < 1000 && ask(named, 5000) == 0; i++)
		usleep(10000);
	if (was_missed || !is_missed || vs_board_is_missed() ||
	    ask(named, 5000) != GIVEN)
		return 1;
	end(pid);
	/* it goes with this process, which does not come again */
	vs_board_leave();
	return vs_board_is_missed() || remove_segments() != 0;
}

static void test_who_was_together_meets_again(void **state)
{
	(void)state;
	apart(0, meet_again);
}

static void *ask_the_deaf(void *unused)
{
	(void)unused;
	ask(device(87), 400);
	return NULL;
}

/*
 * The user logs out time and again, once while a thread asks: no segment is
 * left behind, but the one that the thread looks at until it has its answer.
 */
static int move_often(void)
{
	pthread_t asks;
	int n_meanwhile, id;
	pid_t pid;

	vs_board_join();
	for (int i = 0; i < 10; i++) {
		remove_segments();
		vs_board_join();
	}
	if (attached(&id) != 1)
		return 1;
	pid = neighbour(IS_DEAF, 87);
	pthread_create(&asks, NULL, ask_the_deaf, NULL);
	usleep(100000);
	for (int i = 0; i < 10; i++) {
		remove_segments();
		vs_board_join();
	}
	n_meanwhile = attached(&id);
	pthread_join(asks, NULL);
	vs_board_join();
	end(pid);
	return n_meanwhile > 2 || vs_board_is_missed() || attached(&id) != 1;
}

static void test_what_was_left_goes(void **state)
{
	(void)state;
	apart(0, move_often);
}

/* One who joins as the last one leaves is where the next will be. */
static int join_in_the_bustle(void)
{
	pid_t busy[3];
	int n = 0;

	for (int i = 0; i < 3; i++) {
		busy[i] = fork();
		while (busy[i] == 0) {
			vs_board_forked();
			vs_board_join();
			vs_board_leave();
		}
	}
	for (int i = 0; i < 10000; i++) {
		vs_board_join();
		n += !is_found();
		vs_board_leave();
		vs_board_forked();
	}
	for (int i = 0; i < 3; i++)
		end(busy[i]);
	return n != 0;
}

static void test_who_comes_as_the_last_leaves_is_not_alone(void **state)
{
	(void)state;
	apart(0, join_in_the_bustle);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup(test_##name, join)
		T(slots_are_taken_over),
		T(slots_of_zombies_are_taken_over),
		T(who_has_left_is_silent),
		T(such_a_child_closes_nothing),
		T(a_process_has_one_slot),
		T(the_last_to_leave_removes_it),
		T(no_segment_of_the_programs_is_removed),
		T(what_the_killed_left_is_removed),
		T(a_slot_is_taken_over_by_one),
		T(who_was_together_meets_again),
		T(what_was_left_goes),
		T(who_comes_as_the_last_leaves_is_not_alone),
#undef T
	};

	alarm(120);
	/* other programs under the shim, as of other tests, have slots, too */
	child_unshare_ipc(0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
