#include "anynpu_app.h"
#include "anynpu_board.h"

#ifndef ANYNPU_SELF_TEST
#define ANYNPU_SELF_TEST 0
#endif

int main(void)
{
    anynpu_board_init();
    const int status = ANYNPU_SELF_TEST ? anynpu_self_test() : anynpu_app();
    anynpu_board_exit(status);
    return status;
}
