/* SPDX-License-Identifier: MIT
 *
 * Note [Order of the trace]
 * Each record takes the next number of the process before it is stored. The
 * writer follows the numbers: it looks for the ring whose oldest record has
 * the next one, and stops where a thread has taken a number and not stored the
 * record yet. So a free never stands before its allocation, whichever threads
 * they ran in, and nobody waits for anybody. Times are read after the number
 * and may run backwards between threads by what a thread was held up in
 * between; the writer lifts such a time to the one before.
 */
#include "report/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fmt.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/sys.h"
#include "report/path.h"

#define RING_RECORDS 4096 /* a power of two; 128 KiB a thread */
#define TEXT_BYTES 65536
#define LINE_BYTES 96 /* longest line */
/* How long a thread whose ring is full waits for another's record. */
#define GAP_TRIES 1000
#define GAP_TICK_NS 100000
/* How long the end of the process waits for the service thread. */
#define EXIT_WAIT_MS 200
#define IS_FREE SIZE_MAX /* in place of a size */

struct record {
	uint64_t number; /* place in the trace */
	uint64_t ns;
	uint64_t id;
	size_t size;
};

struct ring {
	struct ring *next; /* all ever made, see find_next(); lock */
	_Atomic pid_t owner;
	int thread; /* number in the trace, -1: nothing written yet; lock */
	_Atomic uint64_t head; /* records stored; the owner writes */
	_Atomic uint64_t tail; /* records written out; lock */
	struct record records[RING_RECORDS];
};

_Atomic bool vs_trace_is_on;

static struct ring *rings; /* lock */
static __thread struct ring *mine __attribute__((tls_model("initial-exec")));
static _Atomic uint64_t next_number;
static atomic_flag has_warned = ATOMIC_FLAG_INIT;

/* Held to write out, and to hand a ring to another thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static struct stat identity; /* of the file, to know it again */
static pid_t owner;	     /* the process that records */
static uint64_t written;     /* number of the next record to write */
static uint64_t start_ns;    /* time of the first record */
static uint64_t last_us;
static int n_threads;
static char text[TEXT_BYTES];

static void warn_once(const char *what, const char *why)
{
	if (!atomic_flag_test_and_set(&has_warned))
		vs_warn("VMMSHIM_TRACE: %s (%s)", what, why);
}

/* The file by its other name, /dev/stdout: a log, perhaps, of many programs. */
static bool is_output(int fd)
{
	struct stat output;

	return !vs_sys_fstat(fd, &output) && vs_fd_is_same(&output, &identity);
}

/* What an earlier run wrote, or the program that this process was before. */
static void cut(int fd, const char *path)
{
	if (is_output(STDOUT_FILENO) || is_output(STDERR_FILENO))
		return;
	if (vs_sys_ftruncate(fd, 0))
		return; /* a pipe or a terminal: nothing to cut */
	if (identity.st_size > 0)
		vs_info("VMMSHIM_TRACE: what %s held (%llu bytes) is "
			"overwritten",
			path, (unsigned long long)identity.st_size);
}

/* Locked against other processes, so that two never mix in one file. */
static int open_file(const char *path)
{
	int fd = vs_fd_clear(vs_sys_open(path,
					 O_WRONLY | O_CREAT | O_APPEND |
						 O_CLOEXEC | O_NOCTTY |
						 O_NONBLOCK,
					 0644));

	if (fd < 0) {
		vs_warn("VMMSHIM_TRACE: cannot write %s (%s), no trace", path,
			vs_path_why(errno));
		return -1;
	}
	if (vs_sys_flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
		vs_warn("VMMSHIM_TRACE: another process writes %s "
			"(%%p in the name keeps them apart), no trace",
			path);
		vs_sys_close(fd);
		return -1;
	}
	/* O_NONBLOCK was for a pipe that nobody reads: that is an error */
	vs_sys_fcntl(fd, F_SETFL, O_WRONLY | O_APPEND);
	if (vs_sys_fstat(fd, &identity)) {
		vs_sys_close(fd);
		return -1;
	}
	cut(fd, path);
	return fd;
}

void vs_trace_init(void)
{
	static atomic_flag is_done = ATOMIC_FLAG_INIT;
	static char path[PATH_MAX]; /* the stack may be small */

	if (!vs_knobs.trace || !*vs_knobs.trace ||
	    atomic_flag_test_and_set(&is_done))
		return;
	if (!vs_path_expand(vs_knobs.trace, path, sizeof(path))) {
		vs_warn("VMMSHIM_TRACE: the name is too long, no trace");
		return;
	}
	owner = vs_sys_getpid();
	file = open_file(path);
	/* last: who sees it writes to the file */
	vs_trace_is_on = file >= 0;
}

/* The ring of a thread that is gone, all written out. Lock held. */
static struct ring *take_over(pid_t self)
{
	struct ring *ring;

	for (ring = rings; ring; ring = ring->next) {
		if (atomic_load(&ring->head) != atomic_load(&ring->tail))
			continue;
		if (vs_sys_tgkill(vs_sys_getpid(), atomic_load(&ring->owner),
				  0) == 0 ||
		    errno != ESRCH)
			continue;
		ring->thread = -1;
		atomic_store(&ring->owner, self);
		return ring;
	}
	return NULL;
}

static struct ring *make_ring(void)
{
	pid_t self = vs_sys_gettid();
	int saved_errno = errno;
	struct ring *ring;

	pthread_mutex_lock(&lock);
	ring = take_over(self);
	if (!ring) {
		ring = mmap(NULL, sizeof(*ring), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (ring == MAP_FAILED) {
			ring = NULL;
		} else {
			ring->thread = -1;
			atomic_store(&ring->owner, self);
			ring->next = rings;
			rings = ring;
		}
	}
	pthread_mutex_unlock(&lock);
	errno = saved_errno;
	if (!ring)
		warn_once("some records are missing", "no memory");
	mine = ring;
	return ring;
}

/*
 * The ring whose oldest record is number `number`, or a smaller one that came
 * too late. It is the first from then on, and may be next time: so those of a
 * thousand threads that are idle, or gone, are not looked at for each record.
 * Lock held.
 */
static struct ring *find_next(uint64_t number)
{
	struct ring *ring, **link;

	for (link = &rings; (ring = *link); link = &ring->next) {
		uint64_t tail =
			atomic_load_explicit(&ring->tail, memory_order_relaxed);

		if (tail == atomic_load_explicit(&ring->head,
						 memory_order_acquire) ||
		    ring->records[tail % RING_RECORDS].number > number)
			continue;
		*link = ring->next;
		ring->next = rings;
		rings = ring;
		return ring;
	}
	return NULL;
}

/* The smallest number that is stored, UINT64_MAX without any. Lock held. */
static uint64_t lowest_number(void)
{
	uint64_t lowest = UINT64_MAX;
	struct ring *ring;

	for (ring = rings; ring; ring = ring->next) {
		uint64_t tail = atomic_load(&ring->tail);
		const struct record *r = &ring->records[tail % RING_RECORDS];

		if (tail != atomic_load(&ring->head) && r->number < lowest)
			lowest = r->number;
	}
	return lowest;
}

static void put_record(struct vs_fmt *f, struct ring *ring,
		       const struct record *r)
{
	uint64_t us;

	if (ring->thread < 0)
		ring->thread = n_threads++;
	if (written == 0)
		start_ns = r->ns;
	us = r->ns > start_ns ? (r->ns - start_ns) / 1000 : 0;
	if (us < last_us)
		us = last_us;
	last_us = us;
	vs_fmt_str(f, r->size == IS_FREE ? "f " : "a ");
	vs_fmt_u64(f, r->id);
	vs_fmt_char(f, ' ');
	if (r->size != IS_FREE) {
		vs_fmt_u64(f, r->size);
		vs_fmt_char(f, ' ');
	}
	vs_fmt_u64(f, us);
	vs_fmt_char(f, ' ');
	vs_fmt_i64(f, ring->thread);
	vs_fmt_char(f, '\n');
}

/*
 * A program that closes descriptors it does not know may have opened a file of
 * its own under the number.
 */
static bool is_our_file(void)
{
	struct stat now;

	return !vs_sys_fstat(file, &now) && vs_fd_is_same(&now, &identity);
}

/* Lock held. */
static void write_text(struct vs_fmt *f)
{
	if (file >= 0 && f->len) {
		if (!is_our_file()) {
			warn_once("the trace ends here",
				  "the program closed its file");
			file = -1;
		} else if (!vs_fmt_write(f, file)) {
			warn_once("the trace ends here", "writing failed");
			file = -1;
		}
	}
	*f = vs_fmt_start(text, sizeof(text));
}

/*
 * Writes what is stored, in order; `over_gaps`: also behind a record whose
 * thread has not stored it yet. Lock held.
 */
static void write_out(bool over_gaps)
{
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));
	struct ring *ring = find_next(written);

	while (ring || over_gaps) {
		const struct record *r;
		uint64_t tail;

		if (!ring)
			ring = find_next(lowest_number());
		if (!ring)
			break;
		tail = atomic_load(&ring->tail);
		r = &ring->records[tail % RING_RECORDS];
		put_record(&f, ring, r);
		if (r->number >= written)
			written = r->number + 1;
		atomic_store_explicit(&ring->tail, tail + 1,
				      memory_order_release);
		if (f.size - f.len < LINE_BYTES)
			write_text(&f);
		ring = find_next(written);
	}
	write_text(&f);
}

void vs_trace_flush(void)
{
	if (!vs_trace_is_on)
		return;
	pthread_mutex_lock(&lock);
	write_out(false);
	pthread_mutex_unlock(&lock);
}

/* Returns with room in the ring of this thread. */
static void __attribute__((cold, noinline)) make_room(struct ring *ring)
{
	uint64_t head = atomic_load(&ring->head);
	int cancel = vs_cancel_hold();

	for (int i = 0; head - atomic_load(&ring->tail) >= RING_RECORDS; i++) {
		if (i)
			vs_cancel_free_sleep(GAP_TICK_NS);
		pthread_mutex_lock(&lock);
		write_out(i == GAP_TRIES);
		pthread_mutex_unlock(&lock);
	}
	vs_cancel_let(cancel);
}

static void add(uint64_t id, size_t size)
{
	struct ring *ring = mine ? mine : make_ring();
	struct record *r;
	uint64_t head;

	if (!ring)
		return;
	head = atomic_load_explicit(&ring->head, memory_order_relaxed);
	if (head - atomic_load_explicit(&ring->tail, memory_order_acquire) >=
	    RING_RECORDS)
		make_room(ring);
	r = &ring->records[head % RING_RECORDS];
	r->number = atomic_fetch_add_explicit(&next_number, 1,
					      memory_order_relaxed);
	r->ns = vs_clock_stamp_ns();
	r->id = id;
	r->size = size;
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

void vs_trace_alloc(uint64_t id, size_t size)
{
	if (vs_trace_is_on)
		add(id, size);
}

void vs_trace_free(uint64_t id)
{
	if (vs_trace_is_on)
		add(id, IS_FREE);
}

void vs_trace_forked(void)
{
	if (!vs_trace_is_on)
		return;
	/* the records are the parent's; so is the file, with its lock */
	vs_trace_is_on = false;
	if (file >= 0 && is_our_file())
		vs_sys_close(file);
	file = -1;
}

/*
 * The service thread may be writing; it ends at once or never. A child that was
 * made behind our back (_Fork, clone) leaves its parent's records to it.
 */
static void __attribute__((destructor)) at_exit(void)
{
	if (!vs_trace_is_on || owner != vs_sys_getpid())
		return;
	vs_cancel_hold();
	for (int i = 0; i < EXIT_WAIT_MS; i++) {
		if (!pthread_mutex_trylock(&lock)) {
			write_out(true);
			pthread_mutex_unlock(&lock);
			return;
		}
		vs_cancel_free_sleep(VS_MS);
	}
}
