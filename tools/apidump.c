/* SPDX-License-Identifier: MIT
 *
 * apidump: prints the names that libvmmshim.so must export, one a line: the
 * intercepted rows of api.def, the libc ones and the public ones, nothing else.
 *   apidump          everything
 *   apidump driver   only functions of the driver, with "base" and version
 */
#include <stdio.h>
#include <string.h>

#include <cuda.h>

#define REQ 0
#define OPT 0
#define PTSZ 0

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "driver") == 0) {
#define API(symbol, base, since, flags)                                        \
	printf("%s %s %d\n", #symbol, base, since);
#include "api.def"
		return 0;
	}
#define API(symbol, base, since, flags) puts(#symbol);
#define LIBC(symbol) puts(#symbol);
#define PUB(symbol) puts(#symbol);
#include "api.def"
	return 0;
}
