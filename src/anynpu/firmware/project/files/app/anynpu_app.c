#include "anynpu_app.h"

#include "anynpu_kat.h"
#include "anynpu_model.h"
#include "anynpu_protocol.h"
#include "anynpu_text.h"
#include "anynpu_board.h"

static int start(void)
{
    anynpu_put("a-anynpu-[");
    anynpu_put(anynpu_board_name());
    anynpu_put(",");
    anynpu_put(ANYNPU_MODEL_NAME);
    anynpu_put_line("]");
#ifdef ANYNPU_HAS_NPU
    anynpu_put("a-npu-[");
    anynpu_put(anynpu_npu_name());
    anynpu_put_line("]");
#endif
    const int status = anynpu_init();
    if (status != 0) {
        anynpu_put("e-[The model does not start: anynpu_init returned ");
        anynpu_put_signed(status);
        anynpu_put_line("]");
    }
    return status;
}

int anynpu_self_test(void)
{
    return (start() == 0 && anynpu_kat()) ? 0 : 1;
}

int anynpu_app(void)
{
    if (start() != 0) {
        return 1;
    }
    if (!anynpu_model_fits()) {
        anynpu_put_line("e-[The vectors are of another network than the model]");
        return 1;
    }
    anynpu_put_line("m-timestamp-mode-performance");
    anynpu_put_line("m-init-done");
    anynpu_put_line("m-ready");
    anynpu_serve();
    return 0;
}
