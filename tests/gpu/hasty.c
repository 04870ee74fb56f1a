/* SPDX-License-Identifier: MIT
 *
 * hasty: a marker is complete when it is recorded. What the linker puts in the
 * place of vs_vmm_event_query makes memory that is freed be used at once.
 */
#include "driver/vmm.h"

CUresult __wrap_vs_vmm_event_query(CUevent event);

CUresult __wrap_vs_vmm_event_query(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}
