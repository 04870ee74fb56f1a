/* SPDX-License-Identifier: MIT
 *
 * victim_unwind: a profiler's signal may come at any instruction of a look-up,
 * and reads the stack from there. So this steps through some, the first before
 * any constructor has run, and sees whether the caller is found from each. By
 * x86's flag for single steps: elsewhere it is seen once, amid the first, where
 * that reads a table that cannot be read.
 */
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include "victim.h"

static unsigned n_steps, n_lost;
static void *lost_at;

static void *look_up(void *handle, const char *name);

/* The table of the C library's names, which a look-up reads. */
static void may_read_names(bool may)
{
	static uintptr_t names;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const struct link_map *map = _r_debug.r_map;
	const ElfW(Dyn) * entry;

	if (!names) {
		while (!strstr(map->l_name, "/libc.so"))
			map = map->l_next;
		for (entry = map->l_ld; entry->d_tag != DT_GNU_HASH; entry++)
			;
		names = entry->d_un.d_ptr & -page;
	}
	mprotect((void *)names, page, may ? PROT_READ | PROT_EXEC : PROT_NONE);
}

/* No further: within STEP() the stack is not where the frame says. */
static _Unwind_Reason_Code look(struct _Unwind_Context *frame, void *found_out)
{
	if (_Unwind_GetRegionStart(frame) != (uintptr_t)look_up)
		return _URC_NO_REASON;
	*(bool *)found_out = true;
	return _URC_NORMAL_STOP;
}

static void step(int number, siginfo_t *info, void *context)
{
	bool is_found = false;

	(void)context;
	if (number == SIGSEGV)
		may_read_names(true);
	_Unwind_Backtrace(look, &is_found);
	n_steps++;
	if (!is_found && n_lost++ == 0)
		lost_at = info->si_addr;
}

#if defined(__x86_64__)
#define STEP(how)                                                              \
	__asm__ volatile("	leaq -128(%%rsp), %%rsp\n"                          \
			 "	pushfq\n	" how                          \
			 ", (%%rsp)\n	popfq\n"                                 \
			 "	leaq 128(%%rsp), %%rsp\n" ::                   \
				 : "memory", "cc")
#define STEP_ON STEP("orq $0x100")
#define STEP_OFF STEP("andq $~0x100")
#else
#define STEP_ON (void)0
#define STEP_OFF __asm__ volatile("") /* else it ends in a jump to dlsym */
#endif

static __attribute__((noinline)) void *look_up(void *handle, const char *name)
{
	void *found;

	STEP_ON;
	found = dlsym(handle, name);
	STEP_OFF;
	return found;
}

static void before_all(void)
{
	struct sigaction action = {.sa_sigaction = step,
				   .sa_flags = SA_SIGINFO | SA_NODEFER};

#if defined(__x86_64__)
	sigaction(SIGTRAP, &action, NULL);
#else
	sigaction(SIGSEGV, &action, NULL);
	may_read_names(false);
#endif
	look_up(RTLD_DEFAULT, "malloc");
}

static __attribute__((section(".preinit_array"),
		      used)) void (*first)(void) = before_all;

int main(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	Dl_info where = {0};

	CHECK(lib);
	/* what the first costs, by steps, takes half a minute */
	CHECK(dlsym(lib, "cuMemAlloc_v2"));
	CHECK(look_up(RTLD_DEFAULT, "malloc"));
	CHECK(look_up(lib, "cuMemAlloc_v2"));
	CHECK(!look_up(lib, "cuNothing"));
	CHECK(!look_up(lib, "dlnothing"));
#if defined(__x86_64__)
	CHECK(n_steps > 100);
#else
	CHECK(n_steps == 1);
#endif
	if (n_lost > 0)
		dladdr(lost_at, &where);
	printf("lost: %u%s%s\n", n_lost, where.dli_sname ? ", in " : "",
	       where.dli_sname ? where.dli_sname : "");
	return 0;
}
