/* SPDX-License-Identifier: MIT */
#include "report/path.h"

#include <errno.h>
#include <limits.h>

#include "base/fmt.h"
#include "base/knob.h"
#include "base/sys.h"

bool vs_path_expand(const char *pattern, char *out, size_t size)
{
	struct vs_fmt f = vs_fmt_start(out, size);
	char host[HOST_NAME_MAX + 1];

	if (vs_sys_hostname(host, sizeof(host)))
		host[0] = '\0';
	host[sizeof(host) - 1] = '\0';
	for (const char *p = pattern; *p; p++) {
		if (*p != '%') {
			vs_fmt_char(&f, *p);
			continue;
		}
		switch (*++p) {
		case 'p':
			vs_fmt_i64(&f, vs_sys_getpid());
			break;
		case 'h':
			vs_fmt_str(&f, host);
			break;
		case 'r':
			vs_fmt_str(&f, vs_knob_rank());
			break;
		case '%':
			vs_fmt_char(&f, '%');
			break;
		default:
			vs_fmt_char(&f, '%');
			p--;
		}
	}
	/* a full buffer cannot be told from a cut text */
	if (f.len + 1 < f.size)
		return true;
	out[0] = '\0';
	return false;
}

const char *vs_path_why(int error)
{
	switch (error) {
	case EACCES:
	case EPERM:
		return "permission denied";
	case ENOENT:
		return "no such folder";
	case ENOTDIR:
		return "part of the path is no folder";
	case EISDIR:
		return "it is a folder";
	case EROFS:
		return "file system is read-only";
	case ENOSPC:
	case EDQUOT:
		return "no space left";
	case EMFILE:
	case ENFILE:
		return "too many open files";
	case ENAMETOOLONG:
		return "name too long";
	case ENXIO:
		return "nobody reads the pipe";
	default:
		return "open failed";
	}
}
