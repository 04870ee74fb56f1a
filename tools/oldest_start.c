/* SPDX-License-Identifier: MIT
 *
 * oldest_start: what calls main(), by its version of before glibc 2.34, where
 * src/base/oldest.h has the others. The machine's crt1.o asks for it, and finds
 * the one here. (The linker's --wrap would not do: gold has the wrapper call
 * itself, lld asks for the newer version besides.) It is one function in each
 * glibc that has both versions; a glibc of before runs no constructors of the
 * program by it, so this is for programs that have none.
 */
#ifdef VS_OLDEST_GLIBC
typedef int vs_main_fn(int argc, char **argv, char **environment);
typedef void vs_hook_fn(void);
typedef int vs_start_fn(vs_main_fn *main, int argc, char **argv,
			vs_hook_fn *init, vs_hook_fn *fini,
			vs_hook_fn *loader_fini, void *stack_end);

vs_start_fn vs_oldest_start, __libc_start_main;
VS_OLDEST_AS(vs_oldest_start, __libc_start_main, VS_OLDEST_BASE);

/* Hidden (AM_CFLAGS), or libraries would find it. */
int __libc_start_main(vs_main_fn *main, int argc, char **argv, vs_hook_fn *init,
		      vs_hook_fn *fini, vs_hook_fn *loader_fini,
		      void *stack_end)
{
	return vs_oldest_start(main, argc, argv, init, fini, loader_fini,
			       stack_end);
}
#else
extern int vs_oldest_start_is_none;
#endif
