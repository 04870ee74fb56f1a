/* SPDX-License-Identifier: MIT
 *
 * cover_ways [--jobs=N] [--each=N] [--only=PART] [--setups=NAME,...]
 *      [--every=N] [--size=MIB] [--allocs=N] [--list]
 *
 * Ways to give work that ends in a block which is freed while that runs. One
 * line each, `WAY<tab>WHAT WAS SEEN` (cover_judge.cu), as they end; the script
 * beside this judges them. --jobs processes at once have --each ways, one
 * after the other. One that ends early is told and followed by another, for the
 * ways that are left. --every: each N-th way alone. --allocs: blocks that are
 * taken in search of the freed one.
 */
#include <dlfcn.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cover.h"
#include "sim_client.h"

/* Seconds: for the start of a process, a way, and its end. */
static const unsigned START_S = 30, WAY_S = 12, LAST_S = 10;
/* Of a process that told why it ends, which is no accident. */
static const int TOLD = 3;

static struct {
	int jobs = 6, each = 20, every = 1;
	std::string only, setups;
	bool is_list = false;
} options;

/* --- a process of some ways ----------------------------------------------- */

typedef std::vector<int> numbers;

[[noreturn]] static void run(const numbers &which, int to)
{
	tell_to = to;
	tell_of = which[0];
	alarm(START_S);
	if (!start(ways[which[0]].of)) {
		for (int i : which)
			tell("B %d\nR %d skipped: one device\n", i, i);
		_exit(0);
	}
	for (int i : which) {
		tell_of = i;
		tell("B %d\n", i);
		alarm(WAY_S);
		judge(ways[i]);
		tell("R %d %s\n", i, note.c_str());
	}
	alarm(LAST_S);
	_exit(0);
}

struct job {
	pid_t pid;
	int from;
	numbers left;
	int at; /* begun and not ended; -1: none */
	std::string text;
};

static std::vector<job> jobs;

static void start_job(const numbers &which)
{
	int ends[2];
	pid_t pid;

	if (pipe(ends)) {
		perror("pipe");
		exit(1);
	}
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		close(ends[0]);
		run(which, ends[1]);
	}
	close(ends[1]);
	jobs.push_back({pid, ends[0], which, -1, ""});
}

static void print(int number, const std::string &what)
{
	printf("%s\t%s\n", ways[number].name.c_str(), what.c_str());
	fflush(stdout);
}

static void forget_to(numbers &left, int number)
{
	auto found = std::find(left.begin(), left.end(), number);

	if (found != left.end())
		left.erase(left.begin(), found + 1);
}

/* `B NUMBER` begins a way, `R NUMBER WHAT` ends it. */
static void read_line(job &j, const std::string &line)
{
	int number, end = 0;
	char what;

	if (sscanf(line.c_str(), "%c %d%n", &what, &number, &end) < 2)
		return;
	if (what == 'B') {
		j.at = number;
		return;
	}
	print(number, line.substr(std::min(line.size(), (size_t)end + 1)));
	forget_to(j.left, number);
	j.at = -1;
}

/* False: it has ended. */
static bool read_job(job &j)
{
	char text[4096];
	ssize_t n = read(j.from, text, sizeof(text));
	size_t end;

	if (n <= 0)
		return false;
	j.text.append(text, n);
	while ((end = j.text.find('\n')) != std::string::npos) {
		read_line(j, j.text.substr(0, end));
		j.text.erase(0, end + 1);
	}
	return true;
}

/* The way at hand is to blame; others do the rest. */
static void end_job(size_t index)
{
	job j = jobs[index];
	int status, guilty;

	jobs.erase(jobs.begin() + index);
	close(j.from);
	waitpid(j.pid, &status, 0);
	if (j.left.empty())
		return;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != TOLD) {
		guilty = j.at >= 0 ? j.at : j.left[0];
		print(guilty,
		      WIFSIGNALED(status)
			      ? "DIED(signal " +
					std::to_string(WTERMSIG(status)) + ")"
			      : "DIED(exit " +
					std::to_string(WEXITSTATUS(status)) +
					")");
		forget_to(j.left, guilty);
	}
	if (!j.left.empty())
		start_job(j.left);
}

static void wait_for_jobs()
{
	fd_set set;
	int most = 0;

	FD_ZERO(&set);
	for (const job &j : jobs) {
		FD_SET(j.from, &set);
		most = std::max(most, j.from);
	}
	if (select(most + 1, &set, NULL, NULL, NULL) < 0)
		return;
	for (size_t i = 0; i < jobs.size(); i++) {
		if (!FD_ISSET(jobs[i].from, &set) || read_job(jobs[i]))
			continue;
		end_job(i);
		return; /* they have moved */
	}
}

/* --- all of them ---------------------------------------------------------- */

static void add_ways()
{
	add_launches();
	add_dependents();
	add_children();
	add_device_graphs();
	add_gates();
	add_copies();
	add_graphs();
	add_frees();
}

static bool is_wanted(int of)
{
	return options.setups.empty() ||
	       ("," + options.setups + ",")
			       .find("," + std::string(setup_names[of]) +
				     ",") != std::string::npos;
}

/* Setup by setup, since a process has one. */
static std::vector<numbers> choose()
{
	std::vector<numbers> chosen;
	int n = 0;

	for (int of = 0; of < N_SETUPS; of++) {
		numbers some;

		for (size_t i = 0; is_wanted(of) && i < ways.size(); i++) {
			if (ways[i].of != of ||
			    ways[i].name.find(options.only) ==
				    std::string::npos ||
			    n++ % options.every)
				continue;
			some.push_back((int)i);
			if ((int)some.size() == options.each) {
				chosen.push_back(some);
				some.clear();
			}
		}
		if (!some.empty())
			chosen.push_back(some);
	}
	return chosen;
}

static bool has_value(const char *argument, const char *name,
		      const char **value_out)
{
	size_t n = strlen(name);

	*value_out = argument + n;
	return strncmp(argument, name, n) == 0;
}

static void read_options(int argc, char **argv)
{
	const char *value;

	for (int i = 1; i < argc; i++) {
		if (has_value(argv[i], "--jobs=", &value))
			options.jobs = std::max(1, atoi(value));
		else if (has_value(argv[i], "--each=", &value))
			options.each = std::max(1, atoi(value));
		else if (has_value(argv[i], "--every=", &value))
			options.every = std::max(1, atoi(value));
		else if (has_value(argv[i], "--only=", &value))
			options.only = value;
		else if (has_value(argv[i], "--setups=", &value))
			options.setups = value;
		else if (has_value(argv[i], "--size=", &value))
			block_size = (size_t)atof(value) << 20;
		else if (has_value(argv[i], "--allocs=", &value))
			n_allocs = atoi(value);
		else if (strcmp(argv[i], "--list") == 0)
			options.is_list = true;
		else {
			fprintf(stderr, "cover_ways: what is %s?\n", argv[i]);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	std::vector<numbers> chosen;
	size_t next = 0;

	read_options(argc, argv);
	/* all kernels are there before one waits for the host */
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);
	signal(SIGPIPE, SIG_IGN);
	is_native = !dlsym(RTLD_DEFAULT, "vmmshim_version");
	is_simulated = sim_client_violations() >= 0;
	add_ways();
	chosen = choose();
	if (options.is_list) {
		for (const numbers &some : chosen)
			for (int i : some)
				puts(ways[i].name.c_str());
		return 0;
	}
	while (next < chosen.size() || !jobs.empty()) {
		while ((int)jobs.size() < options.jobs && next < chosen.size())
			start_job(chosen[next++]);
		wait_for_jobs();
	}
	return 0;
}
