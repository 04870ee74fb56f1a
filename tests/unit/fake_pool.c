/* SPDX-License-Identifier: MIT */
#include "fake_pool.h"

#include "driver/vmm.h"
#include "pool/pool.h"

_Atomic int fake_n_pools;
struct vs_stats fake_stats[FAKE_POOLS];
_Atomic uint64_t fake_id, fake_given;
_Atomic int fake_n_trims, fake_n_ticks, fake_n_refreshes, fake_n_relaxes;
_Atomic bool fake_is_ending, fake_is_waiting;
void (*_Atomic fake_in_trim)(void);
void (*_Atomic fake_in_refresh)(void);

void fake_fill(int i)
{
	_Atomic uint64_t *fields = (_Atomic uint64_t *)&fake_stats[i];

	for (size_t n = 0; n < sizeof(fake_stats[i]) / sizeof(*fields); n++)
		fields[n] = (uint64_t)(i + 1) * 1000000 + n;
}

int vs_pool_count(void)
{
	return fake_n_pools;
}

const struct vs_stats *vs_pool_stats(int i, CUdevice *device_out)
{
	*device_out = i;
	return &fake_stats[i];
}

void vs_pool_refresh(int i)
{
	void (*in_refresh)(void) = fake_in_refresh;

	(void)i;
	if (in_refresh)
		in_refresh();
	fake_n_refreshes++;
}

uint64_t vs_pool_trim(void)
{
	void (*in_trim)(void) = fake_in_trim;

	if (in_trim)
		in_trim();
	fake_n_trims++;
	return 0;
}

/* Of the second the driver tells none. */
const unsigned char *vs_pool_uuid(int i)
{
	static const unsigned char uuid[16] = {
		0x0f, 0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78,
		0x87, 0x96, 0xa5, 0xb4, 0xc3, 0xd2, 0xe1, 0xf0};

	return i == 1 ? NULL : uuid;
}

uint64_t vs_pool_device_id(int i)
{
	return fake_id + (uint64_t)i;
}

uint64_t vs_pool_give_way(int i)
{
	(void)i;
	return fake_given;
}

void vs_pool_ending(bool is)
{
	fake_is_ending = is;
}

bool vs_pool_is_waiting(int i)
{
	(void)i;
	return fake_is_waiting;
}

void vs_pool_tick(void)
{
	fake_n_ticks++;
}

void vs_vmm_relax(CUstreamCaptureMode *saved_out)
{
	*saved_out = CU_STREAM_CAPTURE_MODE_RELAXED;
	fake_n_relaxes++;
}
