/* SPDX-License-Identifier: MIT
 *
 * service_test: what the tests of the service share, for use in a child.
 */
#ifndef TESTS_UNIT_SERVICE_TEST_H
#define TESTS_UNIT_SERVICE_TEST_H

#include <unistd.h>

#include "base/knob.h"
#include "fake_pool.h"
#include "report/service.h"

/* The second start is of no account. */
static inline void start(void)
{
	vs_knob_init();
	vs_service_start();
	vs_service_start();
}

/* For atexit, in the driver's place. */
static inline void driver_sees_no_trim(void)
{
	if (!fake_n_trims)
		_exit(98);
}

static inline void driver_sees_all_undone(void)
{
	driver_sees_no_trim();
	/* the handlers that run later may need memory */
	if (fake_is_ending)
		_exit(97);
}

#endif
