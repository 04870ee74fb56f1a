/* SPDX-License-Identifier: MIT
 *
 * runtime SEED [N_OPS]: calls of the CUDA runtime at random, one line for each
 * operation: its number, name, arguments and answers; objects by their numbers,
 * never addresses, handles or times. All of it must be the same without and
 * with the shim (runtime.test, tests/gpu/sequence). A line with WRONG tells of
 * data that is not what it must be.
 *
 * Three threads take turns, each with its own device and last error. Nothing is
 * done that is undefined by CUDA's rules or known to differ (README.md,
 * Limits).
 */
#include "runtime.h"

int n_devices;

static const struct {
	const char *name;
	uint32_t weights[2]; /* the second: while it captures */
	void (*run)(void);
} operations[] = {
#define X(name, weight, within) {#name, {weight, within}, op_##name},
	OPERATIONS(X)
#undef X
};

enum { N_OPERATIONS = sizeof(operations) / sizeof(*operations) };

cudaError_t say(cudaError_t result)
{
	printf(": %s", cudaGetErrorName(result));
	return result;
}

cudaError_t also(const char *what, cudaError_t result)
{
	printf("; %s", what);
	return say(result);
}

/* Each seed has its favourites, and does some things not at all. */
static uint32_t favours[N_OPERATIONS];

static void choose_favours(void)
{
	for (size_t i = 0; i < N_OPERATIONS; i++)
		favours[i] = chance(5);
	favours[0] += 2; /* memory there must be */
}

static void one_operation(void)
{
	int which = is_capturer() && chance(3) > 0;
	uint32_t sum = 0, at;
	size_t i;

	for (i = 0; i < N_OPERATIONS; i++)
		sum += operations[i].weights[which] * favours[i];
	at = chance(sum);
	for (i = 0; at >= operations[i].weights[which] * favours[i]; i++)
		at -= operations[i].weights[which] * favours[i];
	printf(" %s", operations[i].name);
	fflush(stdout); /* so that it is seen of what a program ends */
	operations[i].run();
}

/* What was answered is remembered until it is asked for. */
void op_errors(void)
{
	also("peek", cudaPeekAtLastError());
	if (chance(3) == 0)
		return;
	also("last", cudaGetLastError());
	also("then", cudaPeekAtLastError());
}

/* ---- devices and threads ------------------------------------------------ */

int current(void)
{
	int device = -1;

	TRY(cudaGetDevice(&device));
	return device;
}

void op_device_set(void)
{
	int device = (int)chance((uint32_t)n_devices);

	if (chance(8) == 0)
		device = chance(2) ? -1 : 77;
	printf(" %d", device);
	say(cudaSetDevice(device));
	printf(" %d", current());
}

void op_device_sync(void)
{
	if (chance(6) == 0 || no_captures())
		say(cudaDeviceSynchronize());
}

void op_device_peer(void)
{
	int other = (int)chance((uint32_t)n_devices), answer = -1;

	if (!no_captures())
		return;
	printf(" %d", other);
	also("can", cudaDeviceCanAccessPeer(&answer, current(), other));
	printf(" %d", answer);
	if (chance(3) > 0)
		also("enable", cudaDeviceEnablePeerAccess(other, 0));
	else
		also("disable", cudaDeviceDisablePeerAccess(other));
}

/* What is not of cudaMalloc is freed before, as one should. */
static void prepare_reset(int device)
{
	int here = current();

	for (int d = 0; d < n_devices; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceSynchronize());
	}
	TRY(cudaSetDevice(here));
	for (struct block *b = blocks; b < blocks + N_BLOCKS; b++) {
		b->done = NULL;
		if (b->kind > PAGEABLE && b->device == device && !is_linear(b))
			free_block(b);
	}
	for (struct graph *g = graphs; g < graphs + N_GRAPHS; g++)
		if (g->graph)
			drop_graph(g);
}

/* All memory of cudaMalloc is gone with it. */
void op_device_reset(void)
{
	int device = current();
	struct cudaPointerAttributes a;
	void *gone = NULL;

	if (!no_captures())
		return;
	printf(" %d", device);
	prepare_reset(device);
	for (struct block *b = blocks; b < blocks + N_BLOCKS; b++) {
		if (!is_linear(b) || b->device != device)
			continue;
		gone = b->bytes;
		forget_block(b);
	}
	also("reset", cudaDeviceReset());
	forget_streams(device);
	forget_kernels(device);
	if (!gone)
		return;
	if (also("gone", cudaPointerGetAttributes(&a, gone)) == cudaSuccess)
		printf(" %d", (int)a.type);
	also("free", cudaFree(gone));
}

/* Its work goes on; another comes in its place. */
void op_thread_end(void)
{
	if (is_capturer())
		return;
	forget_own_streams();
	own_mode[me] = CU_STREAM_CAPTURE_MODE_GLOBAL;
	end_this_thread();
}

/* ---- the run ------------------------------------------------------------ */

/* Everything is looked at, and freed. */
static void finish(void)
{
	for (struct block *b = blocks + 1; b < blocks + N_BLOCKS; b++) {
		unsigned char *data;

		if (b->kind == NONE || !settle(b))
			continue;
		TRY(cudaSetDevice(b->device));
		data = malloc(b->size);
		CHECK(data);
		printf("b%d of %zu", b->serial, b->size);
		if (read_bytes(b, data, 0, b->size))
			look_at(b, data, 0, b->size);
		free_block(b);
		printf("\n");
		free(data);
	}
	for (int d = 0; d < n_devices; d++) {
		TRY(cudaSetDevice(d));
		TRY(cudaDeviceSynchronize());
	}
}

static void start(void)
{
	TRY(cudaGetDeviceCount(&n_devices));
	n_devices = n_devices > MOST_DEVICES ? MOST_DEVICES : n_devices;
	add_constant(current());
	printf("\n");
}

int main(int argc, char **argv)
{
	int n_ops = argc > 2 ? atoi(argv[2]) : 300;
	bool is_right;

	if (argc < 2)
		return 2;
	set_seed(argv[1]);
	choose_favours();
	start();
	start_threads();
	give_turns(n_ops, one_operation);
	give_each(end_own_captures);
	printf("\n");
	give_turn(0, finish);
	is_right = report();
	end_threads();
	return is_right ? 0 : 1;
}
