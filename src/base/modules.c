/* SPDX-License-Identifier: MIT */
#include "base/modules.h"

#include <string.h>

#include "base/fd.h"
#include "base/sys.h"

const char *vs_modules_path = "/proc/modules";

/* A longer line is cut: of NVIDIA's own modules it is known to be short. */
#define LINE 512

struct list {
	bool has_nvidia, has_others;
	bool is_shared; /* another module uses NVIDIA's */
	bool is_silent; /* the kernel does not tell who uses it */
};

static bool is_among(const char *name, const char *const *names)
{
	for (; *names; names++) {
		if (strcmp(name, *names) == 0)
			return true;
	}
	return false;
}

static bool is_own(const char *name)
{
	static const char *const names[] = {"nvidia",	      "nvidia_uvm",
					    "nvidia_modeset", "nvidia_drm",
					    "[permanent]",    NULL};

	return is_among(name, names);
}

/*
 * They may look NVIDIA's functions up while they run (symbol_get), as Amazon's
 * efa does, of which the list of its users says nothing. Whoever has RDMA has
 * ib_uverbs.
 */
static bool is_known_client(const char *name)
{
	static const char *const names[] = {
		"ib_uverbs", "efa",    "erdma",	    "cxi_core", "cxi_ss1",
		"hfi1",	     "gdrdrv", "nvidia_fs", "knem",	NULL};

	return is_among(name, names) || strncmp(name, "nv_peer", 7) == 0 ||
	       strncmp(name, "nvidia_peer", 11) == 0 ||
	       strncmp(name, "efa_", 4) == 0;
}

/* "a,b,": the modules that use NVIDIA's; "-": none, or it is not told. */
static bool are_own(char *users)
{
	char *rest, *name;

	if (strcmp(users, "-") == 0)
		return true;
	for (name = strtok_r(users, ",", &rest); name;
	     name = strtok_r(NULL, ",", &rest)) {
		if (!is_own(name))
			return false;
	}
	return true;
}

/* "name bytes count users state address", and more if it taints. */
static void read_line(struct list *list, char *line, bool is_cut)
{
	char *rest, *name = strtok_r(line, " ", &rest);
	char *bytes = strtok_r(NULL, " ", &rest);
	char *count = strtok_r(NULL, " ", &rest);
	char *users = strtok_r(NULL, " ", &rest);

	if (!name)
		return;
	if (!is_own(name))
		list->has_others = true;
	if (is_known_client(name))
		list->is_shared = true;
	if (strcmp(name, "nvidia") != 0)
		return;
	list->has_nvidia = true;
	if (!bytes || !count || !users || is_cut || !are_own(users))
		list->is_shared = true;
	else if (strcmp(count, "-") == 0)
		list->is_silent = true;
}

/* False if it cannot be read to its end. */
static bool read_list(int fd, void *list)
{
	char line[LINE], part[1024];
	size_t n = 0;
	bool is_cut = false;
	ssize_t got;

	while ((got = vs_sys_read(fd, part, sizeof(part))) > 0) {
		for (ssize_t i = 0; i < got; i++) {
			if (part[i] == '\n') {
				line[n] = '\0';
				read_line(list, line, is_cut);
				n = 0;
				is_cut = false;
			} else if (n < LINE - 1) {
				line[n++] = part[i];
			} else {
				is_cut = true;
			}
		}
	}
	return got == 0;
}

bool vs_modules_are_own(void)
{
	struct list list = {.has_nvidia = false};

	return vs_fd_ask(vs_modules_path, read_list, &list) &&
	       list.has_nvidia && !list.is_shared &&
	       !(list.is_silent && list.has_others);
}
