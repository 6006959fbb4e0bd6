/* Arduino: Serial as the line, micros() as the clock. */
#include <Arduino.h>

#include "anynpu_board.h"

#ifndef ANYNPU_BAUD
#define ANYNPU_BAUD 115200
#endif

extern "C" {

void anynpu_board_init(void)
{
    Serial.begin(ANYNPU_BAUD);
    const unsigned long start = millis();
    while (!Serial && millis() - start < 10000UL) {
        /* A USB line appears when the computer opens it. */
    }
}

int anynpu_board_getc(void)
{
    while (Serial.available() <= 0) {
        yield();
    }
    return Serial.read();
}

void anynpu_board_putc(char c)
{
    Serial.write(static_cast<uint8_t>(c));
}

/* micros() wraps after 71 minutes; it is asked more often than that. */
uint64_t anynpu_board_ticks(void)
{
    static uint32_t last = 0;
    static uint64_t wraps = 0;
    const uint32_t now = static_cast<uint32_t>(micros());
    if (now < last) {
        wraps += 1ULL << 32;
    }
    last = now;
    return wraps + now;
}

uint32_t anynpu_board_tick_hz(void)
{
    return 1000000UL;
}

void anynpu_board_exit(int status)
{
    (void)status;
    Serial.flush();
}

const char *anynpu_board_name(void)
{
    return "@BOARD@";
}

}
