/* Text on the board's line without printf: small, and the same on every board. */
#ifndef ANYNPU_TEXT_H
#define ANYNPU_TEXT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void anynpu_put(const char *text);
void anynpu_put_line(const char *text);                        /* The text and the end of the line. */
void anynpu_put_shown(const char *text, uint32_t length);      /* Unprintable characters become '?'. */
void anynpu_put_unsigned(uint64_t value);
void anynpu_put_signed(int64_t value);
void anynpu_put_hex(const uint8_t *bytes, uint32_t count);
void anynpu_put_real(float value);                             /* Nine digits: reads back as the same float. */

#ifdef __cplusplus
}
#endif

#endif
