/* SPDX-License-Identifier: MIT
 *
 * ipc_puppet: what its two files share.
 */
#ifndef IPC_PUPPET_H
#define IPC_PUPPET_H

#include "victim.h"

/* Opens of threads of their own, which have a socket each. */
extern int puppet_n_beside;

/* Of two hexadecimal digits a byte. */
CUipcMemHandle puppet_handle(const char *text);

/* False: that is no such line. */
bool puppet_obey_process(const char *verb, const char *text);

#endif
