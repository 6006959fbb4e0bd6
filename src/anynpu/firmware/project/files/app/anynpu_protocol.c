#include "anynpu_protocol.h"

#include <string.h>

#include "anynpu_kat.h"
#include "anynpu_model.h"
#include "anynpu_stages.h"
#include "anynpu_text.h"
#include "anynpu_vectors.h"
#include "anynpu_board.h"

#define MAX_RUNS 1000000u

/* The input that `db load` filled. A model may overwrite its own input, so every run starts from this copy. */
static uint8_t input[KAT_INPUT_BYTES];
static uint32_t loaded;
static uint32_t loading; /* Bytes that `db load` still waits for. */

static char line[ANYNPU_LINE_MAX + 1];

static void put_number(const char *before, uint64_t value, const char *after)
{
    anynpu_put(before);
    anynpu_put_unsigned(value);
    anynpu_put_line(after);
}

static void complain(const char *what)
{
    anynpu_put("e-[");
    anynpu_put(what);
    anynpu_put_line("]");
}

/* Reads a whole number and what separates it from the next word; 0 if there is none or it is too large. */
static int number(const char **text, uint32_t most, uint32_t *value)
{
    const char *at = *text;
    uint64_t found = 0;
    if (*at < '0' || *at > '9') {
        return 0;
    }
    while (*at >= '0' && *at <= '9') {
        found = found * 10u + (uint64_t)(*at - '0');
        if (found > most) {
            return 0;
        }
        ++at;
    }
    if (*at != ' ' && *at != '\0') {
        return 0;
    }
    while (*at == ' ') {
        ++at;
    }
    *text = at;
    *value = (uint32_t)found;
    return 1;
}

/* Returns what follows the word in the command, or NULL if the command is another one. */
static const char *after(const char *text, const char *word)
{
    const size_t length = strlen(word);
    if (strncmp(text, word, length) != 0 || (text[length] != ' ' && text[length] != '\0')) {
        return NULL;
    }
    text += length;
    while (*text == ' ') {
        ++text;
    }
    return text;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

static void do_name(void)
{
    anynpu_put("m-name-dut-[anynpu-");
    anynpu_put(anynpu_board_name());
    anynpu_put("-");
    anynpu_put(ANYNPU_MODEL_NAME);
    anynpu_put_line("]");
}

static void do_profile(void)
{
    anynpu_put_line("m-profile-[ULPMark for tinyML Firmware V0.0.1]");
    anynpu_put_line("m-model-[" ANYNPU_MODEL_NAME "]");
}

static void do_timestamp(void)
{
    const uint64_t ticks = anynpu_board_ticks();
    const uint32_t hz = anynpu_board_tick_hz();
    if (hz == 0u) {
        /* No clock here: the count is one of instructions, and the second line says so. */
        put_number("m-lap-us-", ticks, "");
        anynpu_put_line("a-lap-unit-[instructions]");
        return;
    }
    put_number("m-lap-us-", ticks / hz * 1000000u + ticks % hz * 1000000u / hz, "");
}

static void do_db_load(const char *arguments)
{
    uint32_t count;
    if (!number(&arguments, UINT32_MAX, &count) || *arguments != '\0' || count != KAT_INPUT_BYTES) {
        put_number("e-[db load: the input has ", KAT_INPUT_BYTES, " bytes]");
        return;
    }
    loading = count;
    loaded = 0;
    put_number("m-[Expecting ", count, " bytes]");
}

static void do_db_print(void)
{
    anynpu_put("m-buffer-");
    anynpu_put_hex(input, KAT_INPUT_BYTES);
    anynpu_put_line("");
}

static void do_db_bytes(const char *hex)
{
    const size_t length = strlen(hex);
    if (loading == 0u) {
        complain("db: say db load first");
        return;
    }
    if (length % 2u != 0u || length / 2u > loading) {
        put_number("e-[db: an even number of digits was expected, for at most ", loading, " bytes]");
        return;
    }
    for (size_t i = 0; i < length; ++i) {
        if (hex_digit(hex[i]) < 0) {
            complain("db: hexadecimal digits were expected");
            return;
        }
    }
    for (size_t i = 0; i < length; i += 2u) {
        input[loaded++] = (uint8_t)((unsigned)hex_digit(hex[i]) << 4 | (unsigned)hex_digit(hex[i + 1u]));
        --loading;
    }
    if (loading == 0u) {
        anynpu_put_line("m-load-done");
    }
}

static void do_db(const char *arguments)
{
    const char *rest = after(arguments, "load");
    if (rest != NULL) {
        do_db_load(rest);
    } else if (strcmp(arguments, "print") == 0) {
        do_db_print();
    } else if (*arguments == '\0') {
        complain("db: load N, print or hexadecimal bytes were expected");
    } else {
        do_db_bytes(arguments);
    }
}

static int run_many(uint32_t count)
{
    for (uint32_t i = 0; i < count; ++i) {
        anynpu_load(input);
        const int status = anynpu_invoke();
        if (status != 0) {
            anynpu_put("e-[invoke returned ");
            anynpu_put_signed(status);
            anynpu_put_line("]");
            return 0;
        }
    }
    return 1;
}

static void put_real_element(const anynpu_tensor *tensor, uint32_t index)
{
    if (tensor->type == ANYNPU_FLOAT32 || tensor->scale == 0.0f) {
        anynpu_put_element(tensor, tensor->data, index);
    } else {
        anynpu_put_real(anynpu_real(tensor, index));
    }
}

static void do_results(void)
{
    anynpu_put("m-results-[");
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        const anynpu_tensor *tensor = anynpu_output(i);
        for (uint32_t j = 0; j < tensor->elements; ++j) {
            if (i != 0 || j != 0u) {
                anynpu_put(",");
            }
            put_real_element(tensor, j);
        }
    }
    anynpu_put_line("]");
}

static void do_infer(const char *arguments)
{
    uint32_t runs = 1;
    uint32_t warmups = 0;
    const int first = *arguments == '\0' || number(&arguments, MAX_RUNS, &runs);
    const int second = first && (*arguments == '\0' || number(&arguments, MAX_RUNS, &warmups));
    if (!second || *arguments != '\0' || runs == 0u) {
        put_number("e-[infer N W: whole numbers up to ", MAX_RUNS, " were expected]");
        return;
    }
    put_number("m-warmup-start-", warmups, "");
    if (!run_many(warmups)) {
        return;
    }
    anynpu_put_line("m-warmup-done");
    put_number("m-infer-start-", runs, "");
    do_timestamp();
    const int done = run_many(runs);
    if (!done) {
        return;
    }
    do_timestamp();
    anynpu_put_line("m-infer-done");
    do_results();
}

static void do_stages(const char *arguments)
{
    uint32_t runs;
    if (!number(&arguments, ANYNPU_STAGE_RUNS, &runs) || *arguments != '\0' || runs == 0u) {
        put_number("e-[stages N: a whole number from 1 to ", ANYNPU_STAGE_RUNS, " was expected]");
        return;
    }
    if (!anynpu_stages(input, runs)) {
        complain("stages: the model failed");
    }
}

#ifdef ANYNPU_LAYERS
static void do_layers(void)
{
    if (!anynpu_layers(input)) {
        complain("layers: the model failed, or has too many tensors");
    }
}
#endif

static const char *type_name(anynpu_type type)
{
    switch (type) {
    case ANYNPU_INT8:
        return "int8";
    case ANYNPU_UINT8:
        return "uint8";
    case ANYNPU_INT16:
        return "int16";
    case ANYNPU_INT32:
        return "int32";
    case ANYNPU_INT64:
        return "int64";
    case ANYNPU_FLOAT32:
        return "float32";
    default:
        return "bool";
    }
}

static void put_tensor(const char *kind, int index, const anynpu_tensor *tensor)
{
    anynpu_put(kind);
    anynpu_put_signed(index);
    anynpu_put("-[");
    anynpu_put(tensor->name);
    anynpu_put(",");
    anynpu_put(type_name(tensor->type));
    anynpu_put(",");
    for (uint8_t i = 0; i < tensor->rank; ++i) {
        anynpu_put(i == 0u ? "" : "x");
        anynpu_put_signed(tensor->shape[i]);
    }
    anynpu_put(",");
    anynpu_put_real(tensor->scale);
    anynpu_put(",");
    anynpu_put_signed(tensor->zero_point);
    anynpu_put_line("]");
}

static void do_info(void)
{
    anynpu_put_line("a-fingerprint-[" ANYNPU_MODEL_FINGERPRINT "]");
    put_number("a-arena-", ANYNPU_ARENA_BYTES, "");
#ifdef ANYNPU_COUNTS_ARENA
    put_number("a-used-arena-", anynpu_arena_used(), "");
#endif
#ifdef ANYNPU_HAS_NPU
    anynpu_put("a-npu-[");
    anynpu_put(anynpu_npu_name());
    anynpu_put_line("]");
#endif
    put_number("a-macs-", ANYNPU_MODEL_MACS, "");
    put_number("a-tick-hz-", anynpu_board_tick_hz(), "");
    put_number("a-line-max-", ANYNPU_LINE_MAX, "");
    put_number("a-vectors-", KAT_VECTORS, "");
    for (int i = 0; i < ANYNPU_NUM_INPUTS; ++i) {
        put_tensor("a-input-", i, anynpu_input(i));
    }
    for (int i = 0; i < ANYNPU_NUM_OUTPUTS; ++i) {
        put_tensor("a-output-", i, anynpu_output(i));
    }
}

static void do_output(const char *arguments)
{
    uint32_t index;
    if (!number(&arguments, ANYNPU_NUM_OUTPUTS - 1u, &index) || *arguments != '\0') {
        put_number("e-[output I: a whole number below ", ANYNPU_NUM_OUTPUTS, " was expected]");
        return;
    }
    const anynpu_tensor *tensor = anynpu_output((int)index);
    anynpu_put("a-output-hex-");
    anynpu_put_unsigned(index);
    anynpu_put("-[");
    anynpu_put_hex((const uint8_t *)tensor->data, tensor->bytes);
    anynpu_put_line("]");
}

static void do_help(void)
{
    anynpu_put_line("name profile timestamp help results kat info");
    anynpu_put_line("db load N | db HEX | db print    infer N W    stages N    output I");
}

static int plain_command(const char *text)
{
    static const struct {
        const char *word;
        void (*act)(void);
    } commands[] = {
        {"name", do_name}, {"profile", do_profile}, {"timestamp", do_timestamp}, {"results", do_results},
        {"info", do_info}, {"help", do_help},
#ifdef ANYNPU_LAYERS
        {"layers", do_layers},
#endif
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
        if (strcmp(text, commands[i].word) == 0) {
            commands[i].act();
            return 1;
        }
    }
    if (strcmp(text, "kat") == 0) {
        (void)anynpu_kat();
        return 1;
    }
    return 0;
}

static int argument_command(const char *text)
{
    static const struct {
        const char *word;
        void (*act)(const char *arguments);
    } commands[] = {{"db", do_db}, {"infer", do_infer}, {"stages", do_stages}, {"output", do_output}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
        const char *arguments = after(text, commands[i].word);
        if (arguments != NULL) {
            commands[i].act(arguments);
            return 1;
        }
    }
    return 0;
}

static void answer(uint32_t length)
{
    while (length > 0u && line[length - 1u] == ' ') {
        --length;
    }
    line[length] = '\0';
    if (strlen(line) != length || (!plain_command(line) && !argument_command(line))) {
        anynpu_put("e-[Unknown command: ");
        anynpu_put_shown(line, length < 32u ? length : 32u);
        anynpu_put_line("]");
    }
    anynpu_put_line("m-ready");
}

static void answer_overlong(void)
{
    put_number("e-[A command has at most ", ANYNPU_LINE_MAX, " characters]");
    anynpu_put_line("m-ready");
}

void anynpu_serve(void)
{
    uint32_t length = 0; /* ANYNPU_LINE_MAX + 1 says that the command is too long. */
    memcpy(input, kat_inputs[0], sizeof input); /* Something sensible to infer before the first db load. */
    for (;;) {
        const int c = anynpu_board_getc();
        if (c < 0) {
            return;
        }
        if (c == '%' || c == '\n' || c == '\r') {
            if (length > ANYNPU_LINE_MAX) {
                answer_overlong();
            } else if (length > 0u) {
                answer(length);
            }
            length = 0;
        } else if (length < ANYNPU_LINE_MAX) {
            if (length > 0u || c != ' ') {
                line[length++] = (char)c;
            }
        } else {
            length = ANYNPU_LINE_MAX + 1u;
        }
    }
}
