/* SPDX-License-Identifier: MIT
 *
 * roads_chain: adds NUMBER to what the next library of its kind says. dlsym
 * must know who is asking, or the chain never ends.
 */
#include <dlfcn.h>

int roads_chain(void);

int roads_chain(void)
{
	int (*next)(void);

	*(void **)&next = dlsym(RTLD_NEXT, "roads_chain");
	return NUMBER + (next ? next() : 0);
}
