/* SPDX-License-Identifier: MIT
 *
 * modules: whether any other driver of this machine can reach a GPU's memory by
 * itself. A NIC, a capture card, a disk or a mapping for the host get at it by
 * a kernel module that calls NVIDIA's (nvidia_p2p_get_pages); CUDA hears
 * nothing of when such a device reads or writes. What comes by CUDA's own calls
 * (dma-buf, IPC) is not meant here.
 */
#ifndef VS_BASE_MODULES_H
#define VS_BASE_MODULES_H

#include <stdbool.h>

/* The kernel's list: /proc/modules. Tests have their own. */
extern const char *vs_modules_path;

/*
 * True when NVIDIA's driver is loaded and serves its own modules alone. Where
 * the kernel does not tell who uses a module (built without unloading) no other
 * one may be loaded at all. False where there is no such list, or no module
 * "nvidia" in it: a sandbox, WSL, Tegra. Reads the file each time; keeps errno.
 */
bool vs_modules_are_own(void);

#endif
