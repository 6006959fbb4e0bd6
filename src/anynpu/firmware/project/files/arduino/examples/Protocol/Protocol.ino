// Serves the measuring protocol on Serial.
#include <AnyNpu.h>

void setup()
{
    anynpu_board_init();
}

void loop()
{
    anynpu_app();
}
