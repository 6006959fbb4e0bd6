#include "anynpu_text.h"

#include <string.h>

#include "anynpu_board.h"

#define DIGITS 9

void anynpu_put(const char *text)
{
    while (*text != '\0') {
        anynpu_board_putc(*text++);
    }
}

void anynpu_put_line(const char *text)
{
    anynpu_put(text);
    anynpu_put("\r\n");
}

void anynpu_put_shown(const char *text, uint32_t length)
{
    for (uint32_t i = 0; i < length; ++i) {
        const char c = text[i];
        anynpu_board_putc((c >= ' ' && c <= '~' && c != '[' && c != ']') ? c : '?');
    }
}

void anynpu_put_unsigned(uint64_t value)
{
    char digits[21];
    uint32_t at = sizeof digits;
    digits[--at] = '\0';
    do {
        digits[--at] = (char)('0' + (int)(value % 10u));
        value /= 10u;
    } while (value != 0u);
    anynpu_put(&digits[at]);
}

void anynpu_put_signed(int64_t value)
{
    if (value < 0) {
        anynpu_board_putc('-');
        anynpu_put_unsigned(~(uint64_t)value + 1u);
    } else {
        anynpu_put_unsigned((uint64_t)value);
    }
}

void anynpu_put_hex(const uint8_t *bytes, uint32_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < count; ++i) {
        anynpu_board_putc(digits[bytes[i] >> 4]);
        anynpu_board_putc(digits[bytes[i] & 15u]);
    }
}

/* Writes the digits without trailing zeros, with a point after `whole` of them. */
static void put_digits(const char *digits, int count, int whole)
{
    while (count > 1 && count > whole && digits[count - 1] == '0') {
        --count;
    }
    if (whole <= 0) {
        anynpu_put("0.");
        for (int i = whole; i < 0; ++i) {
            anynpu_board_putc('0');
        }
    }
    for (int i = 0; i < count; ++i) {
        if (i == whole && i > 0) {
            anynpu_board_putc('.');
        }
        anynpu_board_putc(digits[i]);
    }
}

void anynpu_put_real(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        anynpu_put((bits & 0x7fffffu) != 0u ? "nan" : (bits >> 31) != 0u ? "-inf" : "inf");
        return;
    }
    if ((bits >> 31) != 0u) {
        anynpu_board_putc('-');
    }
    if ((bits & 0x7fffffffu) == 0u) {
        anynpu_board_putc('0');
        return;
    }
    double scaled = value < 0.0f ? -(double)value : (double)value;
    int exponent = 0;
    while (scaled >= 10.0) {
        scaled /= 10.0;
        ++exponent;
    }
    while (scaled < 1.0) {
        scaled *= 10.0;
        --exponent;
    }
    uint32_t mantissa = (uint32_t)(scaled * 100000000.0 + 0.5);
    if (mantissa > 999999999u) {
        mantissa = 100000000u;
        ++exponent;
    }
    char digits[DIGITS];
    for (int i = DIGITS - 1; i >= 0; --i) {
        digits[i] = (char)('0' + (int)(mantissa % 10u));
        mantissa /= 10u;
    }
    if (exponent >= -5 && exponent < DIGITS) {
        put_digits(digits, DIGITS, exponent + 1);
    } else {
        put_digits(digits, DIGITS, 1);
        anynpu_board_putc('e');
        anynpu_put_signed(exponent);
    }
}
