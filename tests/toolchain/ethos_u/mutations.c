/* Executes one payload many times, each time with one word of it or one byte of its constants changed.

   Regions are blocks of exactly their size, so that the sanitizers see every access outside of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ethosu_driver.h"
#include "ethosu_fault.h"

static uint32_t word(FILE *file)
{
    uint32_t value = 0;
    if (fread(&value, sizeof value, 1, file) != 1) {
        exit(2);
    }
    return value;
}

static uint8_t *copy_of(const uint8_t *from, size_t bytes)
{
    uint8_t *to = malloc(bytes > 0 ? bytes : 1);
    memcpy(to, from, bytes);
    return to;
}

int main(int count, char **arguments)
{
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    uint8_t *original[4];
    size_t bytes[4];
    if (file == NULL) {
        return 2;
    }
    for (int i = 0; i < 4; ++i) { /* Constants, arena, fast memory, payload. */
        bytes[i] = word(file);
        original[i] = malloc(bytes[i] + 1);
        if (fread(original[i], 1, bytes[i], file) != bytes[i]) {
            return 2;
        }
    }
    const uint32_t mutations = word(file);
    for (uint32_t i = 0; i < mutations; ++i) {
        const uint32_t part = word(file);
        const uint32_t place = word(file);
        const uint32_t value = word(file);
        uint8_t *memory[4];
        for (int j = 0; j < 4; ++j) {
            memory[j] = copy_of(original[j], bytes[j]);
        }
        if (part == 3) {
            memcpy(memory[3] + 4u * place, &value, sizeof value);
        } else if (part == 0) {
            memory[0][place] = (uint8_t)value;
        }
        uint64_t bases[3] = {(uintptr_t)memory[0], (uintptr_t)memory[1], (uintptr_t)memory[2]};
        const int status =
            ethosu_invoke_v3(ethosu_reserve_driver(), memory[3], (int)bytes[3], bases, bytes, bytes[2] > 0 ? 3 : 2, NULL);
        uint32_t operation = 0;
        const char *fault = ethosu_reference_fault(&operation);
        uint32_t sum = 0;
        for (size_t j = 0; j < bytes[1]; ++j) {
            sum = sum * 31u + memory[1][j];
        }
        printf("%d %u %s\n", status, (unsigned)sum, fault != NULL ? fault : "");
        for (int j = 0; j < 4; ++j) {
            free(memory[j]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        free(original[i]);
    }
    (void)fclose(file);
    return 0;
}
