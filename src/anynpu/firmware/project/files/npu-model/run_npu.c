/* One call of the NPU: its commands, its constants, and where in the arena its memory is. */
typedef struct {
    const uint8_t *commands;
    int commands_bytes;
    const uint8_t *constants;
    size_t constants_bytes;
    uint32_t scratch;
    size_t scratch_bytes;
    size_t fast_bytes; /* Memory of its own, which the driver was given; 0 where the arena is all there is. */
} npu_call;

static int run_npu(const npu_call *call)
{
    uint8_t *scratch = arena.bytes + call->scratch;
    uint64_t bases[3] = {(uintptr_t)call->constants, (uintptr_t)scratch, (uintptr_t)scratch};
    size_t bytes[3] = {call->constants_bytes, call->scratch_bytes, call->scratch_bytes};
    struct ethosu_driver *driver = ethosu_reserve_driver();
    if (driver == NULL) {
        return 1;
    }
    if (call->fast_bytes > 0u) {
        bases[2] = 0u;
        bytes[2] = call->fast_bytes;
    }
    const int status = ethosu_invoke_v3(driver, call->commands, call->commands_bytes, bases, bytes, 3, NULL);
    ethosu_release_driver(driver);
    return status;
}
