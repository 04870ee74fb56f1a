/* SPDX-License-Identifier: MIT */
#include "hook/primary.h"

#include "driver/vmm.h"
#include "hook/context.h"
#include "hook/green.h"
#include "hook/hook.h"
#include "pool/pool.h"

static struct primary {
	CUcontext ctx;	    /* NULL: none was seen, or another has it */
	unsigned n_retains; /* seen */
	bool is_shared;	    /* others hold it, unseen */
	bool is_reset;	    /* since it was made: how many hold it is unsure */
} primaries[VS_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the above */

/* A callback that the driver makes into the program may retain, too. */
static pthread_mutex_t turns[VS_MAX_DEVICES] = {[0 ... VS_MAX_DEVICES - 1] =
							VS_RECURSIVE_MUTEX};

static bool is_active(CUdevice device)
{
	unsigned int flags;
	int is_active = 0;

	return vs_real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) ==
		       CUDA_SUCCESS &&
	       is_active;
}

/* By a retain that was seen. */
static bool is_retained(CUdevice device)
{
	bool is_seen;

	pthread_mutex_lock(&lock);
	is_seen = primaries[device].n_retains > 0;
	pthread_mutex_unlock(&lock);
	return is_seen;
}

/* For certain by more than one: the driver has it still after a release. */
static bool is_retained_twice(CUdevice device)
{
	const struct primary *p = &primaries[device];
	bool is_sure;

	pthread_mutex_lock(&lock);
	is_sure = p->n_retains > 1 && !p->is_shared && !p->is_reset;
	pthread_mutex_unlock(&lock);
	return is_sure;
}

/* The one that was seen; NULL: none. */
static CUcontext seen_of(CUdevice device)
{
	CUcontext ctx;

	pthread_mutex_lock(&lock);
	ctx = primaries[device].ctx;
	pthread_mutex_unlock(&lock);
	return ctx;
}

CUcontext vs_primary_of(CUdevice device)
{
	CUcontext ctx = vs_vmm_primary(device);

	/* the driver names it to who retains it: not without memory for that */
	return ctx || !is_active(device) ? ctx : seen_of(device);
}

bool vs_primary_is(CUcontext ctx)
{
	bool is_found = false;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < VS_MAX_DEVICES && !is_found; i++)
		is_found = primaries[i].ctx == ctx;
	pthread_mutex_unlock(&lock);
	return is_found;
}

void vs_primary_replaced(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < VS_MAX_DEVICES; i++) {
		if (primaries[i].ctx == ctx)
			primaries[i].ctx = NULL;
	}
	pthread_mutex_unlock(&lock);
}

/*
 * Asked of the context itself, since none may be current, and not where it has
 * ended: what is no error of the program's is none of the shim's, either.
 */
bool vs_primary_may_end(CUdevice device)
{
	unsigned int flags;
	int is_active = 0;

	if (vs_real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) ==
	    CUDA_ERROR_NOT_PERMITTED)
		return false;
	return !is_active || device >= VS_MAX_DEVICES ||
	       vs_vmm_is_permitted(seen_of(device));
}

/* Of one that does nothing there is no lock. */
static bool may_begin(struct vs_turn *turn, bool is_open, CUdevice device)
{
	*turn = (struct vs_turn){.device = device};
	return is_open && device >= 0 && device < VS_MAX_DEVICES;
}

bool vs_turn_begin(struct vs_turn *turn, bool is_open, CUdevice device)
{
	if (!may_begin(turn, is_open, device))
		return false;
	turn->lock = &turns[device];
	pthread_mutex_lock(turn->lock);
	return true;
}

/*
 * In a host function, where the driver refuses both a retain and a release,
 * nobody is waited for: who has the turn may wait for that very function.
 */
static bool begin_unless_refused(struct vs_turn *turn, bool is_open,
				 CUdevice device)
{
	if (!may_begin(turn, is_open, device))
		return false;
	if (pthread_mutex_trylock(&turns[device]) != 0)
		return vs_turn_begin(turn, vs_primary_may_end(device), device);
	turn->lock = &turns[device];
	return true;
}

void vs_turn_end(struct vs_turn *turn)
{
	if (turn->lock)
		pthread_mutex_unlock(turn->lock);
	if (turn->is_born)
		vs_pool_ctx_come();
}

void vs_turn_retain(struct vs_turn *turn, bool is_open, CUdevice device)
{
	if (begin_unless_refused(turn, is_open, device))
		turn->was_active = is_retained(device) || is_active(device);
}

void vs_turn_retained(struct vs_turn *turn, CUcontext ctx)
{
	struct primary *p;

	if (!turn->lock)
		return;
	p = &primaries[turn->device];
	pthread_mutex_lock(&lock);
	if (!ctx || (p->n_retains == 0 && turn->was_active))
		p->is_shared = true;
	if (ctx) {
		p->ctx = ctx;
		p->n_retains++;
	}
	pthread_mutex_unlock(&lock);
	turn->is_born = ctx != NULL;
	if (ctx)
		vs_context_born(ctx, turn->device);
}

/* The pool is told if this is the last for certain. */
void vs_turn_release(struct vs_turn *turn)
{
	struct primary *p;
	bool is_held, is_reset;

	if (!turn->lock)
		return;
	is_held = vs_green_holds(turn->device);
	p = &primaries[turn->device];
	pthread_mutex_lock(&lock);
	turn->is_told = p->n_retains == 1 && !p->is_shared && !is_held;
	is_reset = p->is_reset;
	pthread_mutex_unlock(&lock);
	turn->was_active = is_reset && is_active(turn->device);
	/* or the driver refuses, and nothing is to be taken back */
	turn->is_told = turn->is_told && vs_primary_may_end(turn->device);
	if (turn->is_told)
		turn->ending = vs_context_dying(NULL, turn->device);
}

static void count_release(const struct vs_turn *turn)
{
	struct primary *p = &primaries[turn->device];
	bool is_gone =
		!is_retained_twice(turn->device) && !is_active(turn->device);
	CUcontext ctx;

	pthread_mutex_lock(&lock);
	ctx = p->ctx;
	if (p->n_retains > 0)
		p->n_retains--;
	if (is_gone)
		p->ctx = NULL;
	/* or a reset had ended it, and who holds it holds what comes next */
	if (is_gone && (!p->is_reset || turn->was_active)) {
		p->n_retains = 0;
		p->is_shared = false;
		p->is_reset = false;
	}
	pthread_mutex_unlock(&lock);
	if (is_gone && !turn->is_told && ctx)
		vs_pool_ctx_gone(vs_context_dying(ctx, turn->device));
}

void vs_turn_released(struct vs_turn *turn, CUresult result)
{
	vs_pool_ctx_gone(turn->ending);
	if (turn->lock && result == CUDA_SUCCESS)
		count_release(turn);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out,
						    CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxRetain);
	struct vs_turn turn;
	CUresult result;

	vs_turn_retain(&turn, is_open, device);
	result = vs_real.cuDevicePrimaryCtxRetain(out, device);
	VS_AGAIN(vs_device_bit(device), result,
		 vs_real.cuDevicePrimaryCtxRetain(out, device));
	if (result == CUDA_SUCCESS)
		vs_turn_retained(&turn, *out);
	vs_turn_end(&turn);
	return vs_seen(result);
}

/* The driver's function, of either version. */
typedef CUresult(CUDAAPI *primary_fn)(CUdevice device);

static CUresult release_primary(bool is_open, primary_fn real, CUdevice device)
{
	struct vs_turn turn;
	CUresult result;

	begin_unless_refused(&turn, is_open, device);
	vs_turn_release(&turn);
	result = vs_seen(real(device));
	vs_turn_released(&turn, result);
	vs_turn_end(&turn);
	return result;
}

static void note_reset(CUdevice device)
{
	pthread_mutex_lock(&lock);
	primaries[device].is_reset = true;
	pthread_mutex_unlock(&lock);
}

/* Refused beneath a green context: then what the primary one owns stays. */
static CUresult reset_primary(bool is_open, primary_fn real, CUdevice device)
{
	struct vs_ctx *ending = NULL;
	struct vs_turn turn;
	bool is_begun = vs_turn_begin(&turn, is_open, device);
	bool is_held = is_begun && vs_green_holds(device);
	CUresult result;

	if (is_begun && !is_held)
		ending = vs_context_dying(NULL, device);
	result = vs_seen(real(device));
	if (is_held && result == CUDA_SUCCESS)
		ending = vs_context_dying(NULL, device);
	vs_pool_ctx_gone(ending);
	if (is_begun && result == CUDA_SUCCESS)
		note_reset(device);
	vs_turn_end(&turn);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxRelease);

	return release_primary(is_open, vs_real.cuDevicePrimaryCtxRelease,
			       device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxRelease_v2);

	return release_primary(is_open, vs_real.cuDevicePrimaryCtxRelease_v2,
			       device);
}

static bool enter_reset(enum vs_api api, CUdevice device)
{
	return vs_enter(api) && vs_primary_may_end(device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
	bool is_open = enter_reset(VS_API_cuDevicePrimaryCtxReset, device);

	return reset_primary(is_open, vs_real.cuDevicePrimaryCtxReset, device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	bool is_open = enter_reset(VS_API_cuDevicePrimaryCtxReset_v2, device);

	return reset_primary(is_open, vs_real.cuDevicePrimaryCtxReset_v2,
			     device);
}
