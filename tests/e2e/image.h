/* SPDX-License-Identifier: MIT
 *
 * image: functions of the driver's past every wrapper.
 */
#ifndef IMAGE_H
#define IMAGE_H

#include <elf.h>
#include <link.h>

#include "victim_link.h"

/* The driver's own, by the table of its image; `handle` of dlopen. */
static inline void *in_image(void *handle, const char *name)
{
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	struct link_map *map;

	CHECK(dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)d->d_un.d_ptr;
		if (d->d_tag == DT_STRTAB)
			names = (const char *)d->d_un.d_ptr;
	}
	CHECK(symbols && names);
	/* the string table follows the symbols, as every linker has it */
	for (const ElfW(Sym) *s = symbols; (const char *)s < names; s++) {
		if (s->st_shndx && strcmp(names + s->st_name, name) == 0)
			return (char *)map->l_addr + s->st_value;
	}
	return NULL;
}

#endif
