/* The least of an Arduino core that the library uses, working on a computer. */
#ifndef ARDUINO_H
#define ARDUINO_H
#include <cstdint>
#include <cstdio>
struct SerialPort {
    void begin(unsigned long) {}
    explicit operator bool() const { return true; }
    int available() { return 1; }
    int read() { return std::getchar(); }
    void write(uint8_t c) { std::putchar(c); }
    void flush() { std::fflush(stdout); }
};
extern SerialPort Serial;
unsigned long millis();
unsigned long micros();
void yield();
#endif
