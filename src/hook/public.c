/* SPDX-License-Identifier: MIT
 *
 * public: what vmmshim/vmmshim.h offers.
 */
#include "config.h"

#include "vmmshim/vmmshim.h"

#include <string.h>

#include "base/stat.h"
#include "hook/hook.h"
#include "pool/pool.h"

/* "1.2.3" as 10203. */
VS_EXPORT int vmmshim_version(void)
{
	int version = 0, part = 0;

	for (const char *c = PACKAGE_VERSION; *c; c++) {
		if (*c >= '0' && *c <= '9') {
			part = part * 10 + (*c - '0');
		} else {
			version = (version + part) * 100;
			part = 0;
		}
	}
	return version + part;
}

/* Of the first version: programs built with it are served for ever. */
#define LEAST_SIZE (offsetof(struct vmmshim_stats, blocks) + sizeof(uint64_t))

static int get_stats(int device, struct vmmshim_stats *stats)
{
	for (int i = 0; i < vs_pool_count(); i++) {
		CUdevice owner;
		const struct vs_stats *s = vs_pool_stats(i, &owner);

		if (owner != device)
			continue;
		vs_pool_refresh(i);
		stats->reserved = vs_stat_get(s, reserved);
		stats->reserved_high = vs_stat_get(s, reserved_high);
		stats->live = vs_stat_get(s, live);
		stats->live_high = vs_stat_get(s, live_high);
		stats->pending = vs_stat_get(s, pending);
		stats->idle = vs_stat_get(s, idle);
		stats->blocks = vs_stat_get(s, blocks);
		return 0;
	}
	return -1;
}

VS_EXPORT int vmmshim_stats(int device, struct vmmshim_stats *stats)
{
	struct vmmshim_stats all = {.struct_size = 0};
	size_t size;
	int result;

	if (!stats || stats->struct_size < LEAST_SIZE)
		return -1;
	size = all.struct_size = stats->struct_size;
	result = get_stats(device, &all);
	/* a later version's fields are 0 */
	memset(stats, 0, size);
	memcpy(stats, &all, size < sizeof(all) ? size : sizeof(all));
	return result;
}

VS_EXPORT uint64_t vmmshim_trim(void)
{
	struct vs_thread *t = vs_thread_self();
	uint64_t released;

	if (!vs_gate_is_open() || !vs_thread_go_within(t))
		return 0;
	released = vs_pool_trim_called();
	vs_thread_come_out(t);
	return released;
}
