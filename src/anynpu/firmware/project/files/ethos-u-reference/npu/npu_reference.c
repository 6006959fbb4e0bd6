/* What the firmware says of an NPU that is not there. */
#include "anynpu_board.h"
#include "anynpu_text.h"
#include "ethosu_fault.h"

#include <stddef.h>

const char *anynpu_npu_name(void)
{
    return "reference: the processor executes the NPU's commands; counts and times are not the NPU's";
}

void anynpu_npu_explain(void)
{
    uint32_t operation = 0;
    const char *why = ethosu_reference_fault(&operation);
    if (why != NULL) {
        anynpu_put("e-[NPU reference, operation ");
        anynpu_put_unsigned(operation);
        anynpu_put(": ");
        anynpu_put(why);
        anynpu_put_line("]");
    }
}
