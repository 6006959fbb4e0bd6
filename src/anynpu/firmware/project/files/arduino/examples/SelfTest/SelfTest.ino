// Runs the known-answer test once and prints its verdict.
#include <AnyNpu.h>

void setup()
{
    anynpu_board_init();
    anynpu_self_test();
}

void loop()
{
}
