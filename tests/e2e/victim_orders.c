/* SPDX-License-Identifier: MIT
 *
 * victim_orders: which work in the NULL stream of one context copies in that of
 * another come behind, and which ahead of: what memory's owner is given, if the
 * copy is in no green context, whichever contexts a peer copy names (an H100,
 * 580.159.04).
 * In a green context a created stream has no order with the NULL stream either.
 *   green: without a created context, so that there are one and a green one
 *   managed: of managed memory (an H200)
 *   opened: of memory of other processes', whose owner is who opened it (an
 *   H200); nobody else may set it (INVALID_VALUE), but copy it
 */
#include <pthread.h>
#include <sys/wait.h>

#include "victim_link.h"

enum { PRIMARY, GREEN, CREATED, N_CTX };
enum { TO_HOST, FROM_HOST, FROM, INTO, SET, PEER_FROM, PEER_INTO, PEER_3D };
/* A peer copy names each of the three, or none, for either end. */
enum { N_NAMES = (N_CTX + 1) * (N_CTX + 1) };
enum { N_KINDS = PEER_FROM + 3 * N_NAMES };
/* Plain ones. */
enum { PLAIN_TO_HOST = -3, PLAIN_PEER, PLAIN_PEER_3D };
/* No copy. */
enum { STREAM = PLAIN_TO_HOST - 1 };

/* A copy that may be done is, by then; one that may not is not. */
#define DONE_MS 5000
#define NEVER_MS 4

static const char letters[] = "PGC";
static const size_t size = MiB;
static CUcontext ctx[N_CTX + 1]; /* the last: NULL */
/* One allocation of each is copied from and to, one is of who copies. */
static CUdeviceptr memory[N_CTX], own[N_CTX];
static char *host;
static _Atomic bool may_go;
static int n_ctx = N_CTX;
static int n_right, n_wrong;
static bool is_managed;

/*
 * For opened memory: one context of each device may open what a process has
 * (cuIpcOpenMemHandle in cuda.h), a green one is no other.
 */
static struct exporter {
	int to, from;
	pid_t pid; /* 0: there is none */
} exporters[N_CTX];

static void be_in(int c)
{
	TRY(cuCtxSetCurrent(ctx[c]));
}

static void settle(void)
{
	may_go = true;
	for (int c = 0; c < n_ctx; c++) {
		be_in(c);
		TRY(cuStreamSynchronize(NULL));
	}
	may_go = false;
}

static CUDA_MEMCPY3D_PEER layer(CUdeviceptr dst, CUcontext to, CUdeviceptr src,
				CUcontext from)
{
	return (CUDA_MEMCPY3D_PEER){.dstMemoryType = CU_MEMORYTYPE_DEVICE,
				    .dstDevice = dst,
				    .dstContext = to,
				    .dstPitch = size / 4,
				    .srcMemoryType = CU_MEMORYTYPE_DEVICE,
				    .srcDevice = src,
				    .srcContext = from,
				    .srcPitch = size / 4,
				    .WidthInBytes = size / 4,
				    .Height = 4,
				    .Depth = 1};
}

static CUresult copy(int kind, int m, int by)
{
	int named = (kind - PEER_FROM) % N_NAMES;
	CUcontext to = ctx[named < 0 ? 0 : named / (N_CTX + 1)];
	CUcontext from = ctx[named < 0 ? 0 : named % (N_CTX + 1)];
	CUDA_MEMCPY3D_PEER c = layer(memory[m], to, own[by], from);

	switch (kind) {
	case TO_HOST:
		return cuMemcpyDtoHAsync(host, memory[m], size, NULL);
	case FROM_HOST:
		return cuMemcpyHtoDAsync(memory[m], host, size, NULL);
	case FROM:
		return cuMemcpyDtoDAsync(own[by], memory[m], size, NULL);
	case INTO:
		return cuMemcpyDtoDAsync(memory[m], own[by], size, NULL);
	case SET:
		return cuMemsetD8Async(memory[m], 5, size, NULL);
	}
	switch (PEER_FROM + (kind - PEER_FROM) / N_NAMES) {
	case PEER_FROM:
		return cuMemcpyPeerAsync(own[by], to, memory[m], from, size,
					 NULL);
	case PEER_INTO:
		return cuMemcpyPeerAsync(memory[m], to, own[by], from, size,
					 NULL);
	default:
		return cuMemcpy3DPeerAsync(&c, NULL);
	}
}

/* What a stream of the current context was given is done. */
static bool is_done(CUstream stream, bool is_due)
{
	int ms = is_due ? DONE_MS : NEVER_MS;

	for (int i = 0; i < ms * 5 && cuStreamQuery(stream) != CUDA_SUCCESS;
	     i++)
		usleep(200);
	return cuStreamQuery(stream) == CUDA_SUCCESS;
}

/* Whose the memory is that a context has. */
static int owner_of(int c)
{
	return c == GREEN ? PRIMARY : c;
}

static bool is_ordered(int kind, int m, int by, int other)
{
	return kind != SET && by != GREEN && other == owner_of(m);
}

/* By a set in another context. */
static bool may_set(int m, int by)
{
	return exporters[m].pid == 0 || owner_of(m) == owner_of(by);
}

static void judge(bool is_right, const char *how, int kind, int m, int by,
		  int other)
{
	n_right += is_right;
	if (is_right)
		return;
	printf("kind %d of %c's memory in %c: not %s %c's work\n", kind,
	       letters[m], letters[by], how, letters[other]);
	/* each may have taken DONE_MS */
	if (++n_wrong == 3)
		exit(70);
}

static void try_copy(int kind, int m, int by, int other)
{
	bool is_due = is_ordered(kind, m, by, other);

	if (kind == SET && !may_set(m, by))
		return;
	be_in(other);
	TRY(cuLaunchHostFunc(NULL, victim_wait_for, &may_go));
	be_in(by);
	TRY(copy(kind, m, by));
	judge(is_done(NULL, !is_due) == !is_due, is_due ? "behind" : "beside",
	      kind, m, by, other);
	settle();
	be_in(by);
	TRY(cuLaunchHostFunc(NULL, victim_wait_for, &may_go));
	TRY(copy(kind, m, by));
	be_in(other);
	TRY(cuMemsetD8Async(own[other], 3, size, NULL));
	judge(is_done(NULL, !is_due) == !is_due, is_due ? "ahead of" : "beside",
	      kind, m, by, other);
	settle();
}

/* After a time that a copy that need not wait for it does not take. */
static void *let_go(void *is_due)
{
	int ms = is_due ? NEVER_MS : DONE_MS;

	for (int i = 0; i < ms && !may_go; i++)
		usleep(1000);
	may_go = true;
	return NULL;
}

/* Those of peers name no context. */
static CUresult copy_plainly(int kind, int m, int by)
{
	CUDA_MEMCPY3D_PEER c = layer(own[by], NULL, memory[m], NULL);

	switch (kind) {
	case PLAIN_TO_HOST:
		return cuMemcpyDtoH(host, memory[m], size);
	case PLAIN_PEER:
		return cuMemcpyPeer(own[by], NULL, memory[m], NULL, size);
	default:
		return cuMemcpy3DPeer(&c);
	}
}

/* The host waits for the first, and need not for the others. */
static void try_plain(int kind, int m, int by, int other)
{
	bool is_due = is_ordered(kind, m, by, other);
	pthread_t thread;

	if (!may_set(m, other))
		return;
	be_in(other);
	TRY(cuMemsetD8(memory[m], 1, size));
	settle();
	be_in(other);
	TRY(cuLaunchHostFunc(NULL, victim_wait_for, &may_go));
	TRY(cuMemsetD8Async(memory[m], 2, size, NULL));
	be_in(by);
	CHECK(pthread_create(&thread, NULL, let_go, is_due ? host : NULL) == 0);
	TRY(copy_plainly(kind, m, by));
	is_done(NULL, !is_due);
	may_go = true;
	pthread_join(thread, NULL);
	settle();
	be_in(by);
	if (kind != PLAIN_TO_HOST)
		TRY(cuMemcpyDtoH(host, own[by], size));
	judge(host[size - 1] == (is_due ? 2 : 1), is_due ? "behind" : "beside",
	      kind, m, by, other);
}

/* One that is created in a green context has no order with its NULL stream. */
static void try_stream(int c)
{
	bool is_due = c != GREEN;
	CUstream stream;

	be_in(c);
	TRY(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	for (int i = 0; i < 2; i++) {
		CUstream earlier = i ? stream : NULL, later = i ? NULL : stream;

		be_in(c);
		TRY(cuLaunchHostFunc(earlier, victim_wait_for, &may_go));
		TRY(cuMemsetD8Async(own[c], 3, size, later));
		judge(is_done(later, !is_due) == !is_due,
		      is_due ? "behind" : "beside", STREAM - i, c, c, c);
		may_go = true;
		TRY(cuStreamSynchronize(stream));
		settle();
	}
	be_in(c);
	TRY(cuStreamDestroy(stream));
}

/* A process that exports some memory for each byte that it is sent. */
static int second(int in, int out)
{
	CUdeviceptr p[N_CTX];
	CUipcMemHandle handle;
	char byte;
	int n = 0;

	while (read(in, &byte, 1) == 1) {
		if (n == 0)
			victim_start(0);
		p[n] = victim_alloc(3 * size);
		TRY(cuIpcGetMemHandle(&handle, p[n++]));
		CHECK(write(out, &handle, sizeof(handle)) == sizeof(handle));
	}
	while (n > 0)
		victim_free(p[--n]);
	return 0;
}

static CUdeviceptr obtain(const struct exporter *e)
{
	CUipcMemHandle handle;
	CUdeviceptr p = 0;

	if (is_managed) {
		TRY(cuMemAllocManaged(&p, 3 * size, CU_MEM_ATTACH_GLOBAL));
	} else if (e->pid) {
		CHECK(write(e->to, "", 1) == 1);
		CHECK(read(e->from, &handle, sizeof(handle)) == sizeof(handle));
		TRY(cuIpcOpenMemHandle(&p, handle,
				       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	} else {
		p = victim_alloc(3 * size);
	}
	return p;
}

static void give_up(const struct exporter *e, CUdeviceptr p)
{
	if (is_managed)
		TRY(cuMemFree(p));
	else if (e->pid)
		TRY(cuIpcCloseMemHandle(p));
	else
		victim_free(p);
}

static void start(void)
{
	CUdevice device;
	CUstream unused;

	ctx[PRIMARY] = victim_start(0);
	TRY(cuDeviceGet(&device, 0));
	ctx[GREEN] = victim_green(device, &unused);
	if (n_ctx == N_CTX)
		TRY(cuCtxCreate_v2(&ctx[CREATED], 0, device));
	TRY(cuMemHostAlloc((void **)&host, size, CU_MEMHOSTALLOC_PORTABLE));
	for (int c = 0; c < n_ctx; c++) {
		be_in(c);
		memory[c] = obtain(&exporters[c]);
		own[c] = victim_alloc(3 * size);
		TRY(cuMemsetD8(memory[c], 1, size));
		TRY(cuMemsetD8(own[c], 1, size));
	}
	settle();
}

static void end(void)
{
	for (int c = 0; c < n_ctx; c++) {
		be_in(c);
		give_up(&exporters[c], memory[c]);
		victim_free(own[c]);
	}
	/* the last first: it has what the others are told by, too */
	for (int c = N_CTX - 1; c >= 0; c--)
		if (exporters[c].pid) {
			close(exporters[c].to);
			CHECK(waitpid(exporters[c].pid, NULL, 0) ==
			      exporters[c].pid);
		}
}

static void read_args(char **argv)
{
	const char *mode = argv[1] ? argv[1] : "";

	if (strcmp(mode, "second") == 0)
		exit(second(atoi(argv[2]), atoi(argv[3])));
	if (strcmp(mode, "green") == 0)
		n_ctx = CREATED;
	is_managed = strcmp(mode, "managed") == 0;
	for (int c = 0; c < N_CTX && strcmp(mode, "opened") == 0; c++)
		exporters[c].pid = victim_start_second(
			argv[0], &exporters[c].to, &exporters[c].from);
}

int main(int argc, char **argv)
{
	(void)argc;
	read_args(argv);
	start();
	for (int m = 0; m < n_ctx; m++)
		for (int by = 0; by < n_ctx; by++)
			for (int other = 0; other < n_ctx; other++) {
				if (other == by)
					continue;
				for (int kind = 0; kind < N_KINDS; kind++)
					try_copy(kind, m, by, other);
				for (int kind = PLAIN_TO_HOST; kind < TO_HOST;
				     kind++)
					try_plain(kind, m, by, other);
			}
	for (int c = 0; c < n_ctx; c++)
		try_stream(c);
	printf("orders: %d right, %d wrong\n", n_right, n_wrong);
	end();
	return n_wrong ? 70 : 0;
}
