/* SPDX-License-Identifier: MIT
 *
 * cover: what the files cover*.cu share. Each way to give work ends in one
 * block, behind a gate that the host opens; the block is freed before that.
 * cover_judge.cu says what is asked then.
 */
#ifndef TESTS_GPU_COVER_H
#define TESTS_GPU_COVER_H

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/* The block's words: before the work, by the work, by who has it next. */
static const uint32_t BEFORE = 0x50505050, WRITTEN = 0x61616161,
		      NEXT = 0x72727272;
/* Kernels and the host look at each 256th word. */
static const size_t STRIDE = 256;
/* Of the array and of managed memory: 1024 rows of 1024. */
static const size_t ARRAY_WORDS = 1 << 20, ARRAY_PITCH = 4096,
		    ARRAY_ROWS = 1024;

/* The control words, which host and kernels share. */
enum { OPEN, STARTED, ENDED, WRONG, TIMEOUT };

/* What is there beside a context of device 0: one row, one kind of process. */
#define SETUPS(SETUP)                                                          \
	SETUP(BASE, "base")                                                    \
	SETUP(CTX2, "ctx2")                                                    \
	SETUP(GREEN, "green")                                                  \
	SETUP(DEV2, "dev2")                                                    \
	SETUP(NOPEER, "dev2-nopeer")                                           \
	SETUP(LATE, "dev2-late")

#define SETUP_ID(id, name) id,
enum setup { SETUPS(SETUP_ID) N_SETUPS };
#undef SETUP_ID
extern const char *const setup_names[N_SETUPS];

struct world {
	CUdevice devices[2];
	/* The block's; another of its device; a green one; device 1's. */
	CUcontext a, b, g, d;
	/* Of a: its places; a second one beside; for the judge, a capture. */
	CUstream nb, blocking, high, low, nb2, judge, captured;
	CUstream b_nb, g_nb, d_nb;
	uint32_t *control;
	CUdeviceptr control_at;
	CUdeviceptr block;    /* 0: freed */
	CUdeviceptr source;   /* of a and as large, full of WRITTEN */
	unsigned long long n; /* words of the block */
	uint32_t *pinned, *seen, *pageable; /* on the host, as large */
	CUarray array;
	CUdeviceptr managed;
	/* What the work read is BEFORE; empty: it reads nothing to the host. */
	std::function<bool()> has_read_right;
	bool has_end; /* the work says when it ends */
	std::vector<std::function<void()>> undo;
};
extern world w;
extern size_t block_size;
extern bool is_simulated, is_native;

/* --- where work is given -------------------------------------------------- */

/* PLACE(id, setup, name, context that is current, stream) */
#define PLACES(PLACE)                                                          \
	PLACE(A_LEGACY, BASE, "A.legacy", a, CU_STREAM_LEGACY)                 \
	PLACE(A_PERTHREAD, BASE, "A.perthread", a, CU_STREAM_PER_THREAD)       \
	PLACE(A_BLOCKING, BASE, "A.blocking", a, w.blocking)                   \
	PLACE(A_NB, BASE, "A.nonblocking", a, w.nb)                            \
	PLACE(A_HIGH, BASE, "A.high", a, w.high)                               \
	PLACE(A_LOW, BASE, "A.low", a, w.low)                                  \
	PLACE(B_NB, CTX2, "B.nonblocking", b, w.b_nb)                          \
	PLACE(B_LEGACY, CTX2, "B.legacy", b, CU_STREAM_LEGACY)                 \
	PLACE(B_PERTHREAD, CTX2, "B.perthread", b, CU_STREAM_PER_THREAD)       \
	PLACE(G_STREAM, GREEN, "G.stream", g, w.g_nb)                          \
	PLACE(G_LEGACY, GREEN, "G.legacy", g, CU_STREAM_LEGACY)                \
	PLACE(G_FROM_A, GREEN, "G.stream,A-current", a, w.g_nb)                \
	PLACE(A_FROM_G, GREEN, "A.nonblocking,G-current", g, w.nb)             \
	PLACE(D_NB, DEV2, "D.nonblocking", d, w.d_nb)                          \
	PLACE(D_LEGACY, DEV2, "D.legacy", d, CU_STREAM_LEGACY)                 \
	PLACE(NOPEER_D, NOPEER, "D.nonblocking", d, w.d_nb)                    \
	PLACE(LATE_D, LATE, "D.nonblocking", d, w.d_nb)                        \
	PLACE(CTX2_A, CTX2, "A.nonblocking", a, w.nb)                          \
	PLACE(GREEN_A, GREEN, "A.nonblocking", a, w.nb)                        \
	PLACE(DEV2_A, DEV2, "A.nonblocking", a, w.nb)                          \
	PLACE(NOPEER_A, NOPEER, "A.nonblocking", a, w.nb)                      \
	PLACE(LATE_A, LATE, "A.nonblocking", a, w.nb)

#define PLACE_ID(id, setup, name, context, stream) id,
enum { PLACES(PLACE_ID) N_PLACES };
#undef PLACE_ID

struct place {
	setup of;
	const char *name;
	CUcontext *context;
	CUstream (*stream)();
};
extern const place places[N_PLACES];

/* A set of places: at(A_NB, B_NB). */
template <typename... ids> constexpr unsigned at(ids... id)
{
	return ((1u << id) | ...);
}

/* --- kernels (cover_kernels.cu) ------------------------------------------- */

/*
 * All begin with the same three arguments (control, block, words); the names
 * say what is behind them.
 */
enum kernel {
	WORK,	   /* GATE and TOUCH in one */
	GATE,	   /* runs until the host opens it, two seconds at most */
	TOUCH,	   /* finds BEFORE, leaves WRITTEN */
	NOTHING,   /* one thread that ends at once */
	FIRST,	   /* WORK, but lets what depends on it begin */
	DEPENDENT, /* NOTHING, but waits for FIRST */
	READ_TEX,  /* a GATE, then looks by (texture) */
	PARENT,	   /* has a child do WORK, in the stream (enum child) */
	GRAND,	   /* a parent of such a one, (enum child) */
	LAUNCHER,  /* of a graph (exec, enum launched) */
	CONDITION, /* sets (handle, value) */
	N_KERNELS
};
enum child { IN_DEFAULT, FIRE_AND_FORGET, TAIL, IN_CREATED };
enum launched { FORGOTTEN, BEHIND, SIBLING };

typedef std::vector<CUlaunchAttribute> attributes;
typedef std::vector<void *> arguments;

/* `more` are arguments behind the first three. */
void launch(kernel what, CUstream stream, const attributes &how = {},
	    const arguments &more = {});
void launch_by_runtime(CUstream stream); /* WORK */
CUgraphNode add_kernel(CUgraph graph, std::vector<CUgraphNode> behind,
		       kernel what, CUcontext context,
		       const arguments &more = {});
CUkernel kernel_of(kernel what);
CUlaunchAttribute attribute(CUlaunchAttributeID id);
void CUDA_CB host_gate(void *); /* a GATE */

/* --- ways ----------------------------------------------------------------- */

/* Who frees the block, and by which call; IN_...: by cuMemFreeAsync. */
enum freeing {
	FREE,
	FREE_B, /* with that context current */
	FREE_G,
	FREE_D,
	FREE_THREAD,
	IN_NB,
	IN_NB2,
	IN_LEGACY,
	IN_B,
	IN_D,
	IN_G
};

struct way {
	setup of;
	std::string name; /* with its setup's and mostly its place's */
	std::function<void()> give;
	freeing how;
	bool is_capturing; /* a capture is open while the block is freed */
};
extern std::vector<way> ways;

/* A way in each of some places. */
struct row {
	const char *name;
	unsigned where;
	void (*give)(const place &where, int how);
	int how;
	bool is_capturing;
};

/* A way that has no place. */
struct single {
	setup of;
	const char *name;
	void (*give)();
	freeing how;
	bool is_capturing;
};

void add(setup of, const std::string &name, std::function<void()> give,
	 freeing how = FREE, bool is_capturing = false);
void add_at(const place &where, const std::string &name,
	    std::function<void()> give, bool is_capturing = false);
/* Place by place, and row by row in each. */
void add_rows(const row *rows, size_t n);
void add_singles(const single *singles, size_t n);
#define ADD_ROWS(rows) add_rows(rows, sizeof(rows) / sizeof(*(rows)))
#define ADD_SINGLES(list) add_singles(list, sizeof(list) / sizeof(*(list)))

/* In the order of the list. */
void add_launches();
void add_dependents();
void add_children();
void add_device_graphs();
void add_gates();
void add_copies();
void add_graphs();
void add_frees();

/* --- what ways are made of ------------------------------------------------ */

/* An error ends the process, which tells its call. */
#define TRY(call) try_call((call), #call)
void try_call(CUresult result, const char *call);
void try_call(cudaError_t result, const char *call);
[[noreturn]] void fail(const char *what, const char *why);
const char *name_of(CUresult result); /* without CUDA_ERROR_ */

void use(CUcontext context);
CUevent make_event();
/* What comes in `after`, of `to`, waits for what is in `before`, of `from`. */
void follow(CUcontext from, CUstream before, CUcontext to, CUstream after);
void wait_in_stream(CUstream stream); /* gates that are memory operations */
CUstreamBatchMemOpParams wait_operation();
void wait_by_batch(CUstream stream);
CUgraph make_graph();
CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0);
/* Launches it and destroys it, in the end. */
void launch_once(CUgraph graph, CUstream stream);

/* --- one process (cover_world.cu, cover_judge.cu) ------------------------- */

double now(); /* seconds */
void nap(double seconds);
bool is_open();
bool start(setup of); /* false: this machine has too few devices */
void settle();	      /* waits for all contexts */
extern int n_allocs;  /* to look for the block in, under the shim */
/* What there is to say of it, `note` (which an error ends, too). */
extern std::string note;
void judge(const way &way);
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern int tell_to, tell_of; /* where to, and of which way */

#endif
