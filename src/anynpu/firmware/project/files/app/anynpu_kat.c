#include "anynpu_kat.h"

#include <string.h>

#include "anynpu_board.h"
#include "anynpu_text.h"
#include "anynpu_vectors.h"

/* By how much a stored integer may differ. Integer models are exact; an NPU whose rounding differs may need 1. */
#ifndef ANYNPU_KAT_TOLERANCE
#define ANYNPU_KAT_TOLERANCE 0
#endif

int64_t anynpu_element(const anynpu_tensor *tensor, const void *data, uint32_t index)
{
    const uint32_t width = tensor->bytes / tensor->elements;
    const uint8_t *bytes = (const uint8_t *)data + (size_t)index * width;
    const int is_signed = tensor->type != ANYNPU_UINT8 && tensor->type != ANYNPU_BOOL;
    uint64_t bits = (is_signed && (bytes[width - 1u] & 0x80u) != 0u) ? UINT64_MAX : 0u;
    for (uint32_t i = width; i > 0u; --i) {
        bits = bits << 8 | bytes[i - 1u];
    }
    int64_t value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void anynpu_put_element(const anynpu_tensor *tensor, const void *data, uint32_t index)
{
    float real;
    if (tensor->type == ANYNPU_FLOAT32) {
        memcpy(&real, (const uint8_t *)data + (size_t)index * sizeof real, sizeof real);
        anynpu_put_real(real);
    } else {
        anynpu_put_signed(anynpu_element(tensor, data, index));
    }
}

int anynpu_model_fits(void)
{
    uint32_t in = 0;
    uint32_t out = 0;
    for (int i = 0; i < ANYNPU_NUM_INPUTS; ++i) {
        in += anynpu_input(i)->bytes;
    }
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        out += anynpu_output(i)->bytes;
    }
    return in == KAT_INPUT_BYTES && out == KAT_OUTPUT_BYTES && strcmp(KAT_FINGERPRINT, ANYNPU_MODEL_FINGERPRINT) == 0;
}

void anynpu_load(const uint8_t *bytes)
{
    for (int i = 0; i < ANYNPU_NUM_INPUTS; ++i) {
        const anynpu_tensor *tensor = anynpu_input(i);
        memcpy(tensor->data, bytes, tensor->bytes);
        bytes += tensor->bytes;
    }
}

static int same(const anynpu_tensor *tensor, const uint8_t *expected, uint32_t index)
{
    const int64_t wanted = anynpu_element(tensor, expected, index);
    const int64_t got = anynpu_element(tensor, tensor->data, index);
    if (ANYNPU_KAT_TOLERANCE == 0 || tensor->type == ANYNPU_FLOAT32) {
        return wanted == got;
    }
    return wanted - got <= ANYNPU_KAT_TOLERANCE && got - wanted <= ANYNPU_KAT_TOLERANCE;
}

static void put_vector(uint32_t vector, const char *verdict)
{
    anynpu_put("kat ");
    anynpu_put_unsigned(vector);
    anynpu_put(verdict);
}

static int compare(uint32_t vector, const anynpu_tensor *tensor, const uint8_t *expected)
{
    for (uint32_t i = 0; i < tensor->elements; ++i) {
        if (!same(tensor, expected, i)) {
            put_vector(vector, " FAIL output ");
            anynpu_put(tensor->name);
            anynpu_put("[");
            anynpu_put_unsigned(i);
            anynpu_put("] expected ");
            anynpu_put_element(tensor, expected, i);
            anynpu_put(" got ");
            anynpu_put_element(tensor, tensor->data, i);
            anynpu_put_line("");
            return 0;
        }
    }
    return 1;
}

static int one(uint32_t vector)
{
    const uint8_t *expected = kat_outputs[vector];
    anynpu_load(kat_inputs[vector]);
    const int status = anynpu_invoke();
    if (status != 0) {
#ifdef ANYNPU_HAS_NPU
        anynpu_npu_explain();
#endif
        put_vector(vector, " FAIL invoke returned ");
        anynpu_put_signed(status);
        anynpu_put_line("");
        return 0;
    }
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        const anynpu_tensor *tensor = anynpu_output(i);
        if (!compare(vector, tensor, expected)) {
            return 0;
        }
        expected += tensor->bytes;
    }
    put_vector(vector, " PASS");
    anynpu_put_line("");
    return 1;
}

int anynpu_kat(void)
{
    uint32_t passed = 0;
    if (!anynpu_model_fits()) {
        anynpu_put_line("kat-result FAIL the vectors are of another network");
        return 0;
    }
    for (uint32_t i = 0; i < KAT_VECTORS; ++i) {
        passed += (uint32_t)one(i);
    }
    anynpu_put(passed == KAT_VECTORS ? "kat-result PASS " : "kat-result FAIL ");
    anynpu_put_unsigned(passed);
    anynpu_put("/");
    anynpu_put_unsigned(KAT_VECTORS);
    anynpu_put_line("");
    return passed == KAT_VECTORS;
}
