"""The vendor's status numbers: their names, what likely caused them and what to do.

The library's own noe_get_error_message needs a live context, which most failures leave nobody with.
"""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.errors import DeviceError

SUCCESS, OPEN_DEVICE, GRAPH_VERSION, JOB_EXCEPTION, INVALID_OPERATION, TIMEOUT = 0x0, 0x3, 0x8, 0x11, 0x14, 0x23


@dataclass(frozen=True)
class Status:
    """One number of the vendor's."""

    name: str
    cause: str
    fix: str


_OURS = "a defect of the program that calls the library"
_REPORT = "please report it, with the output of `anynpu doctor`"
_MODEL = "the model file is damaged, or made by another version of the compiler"
_REBUILD = "fetch the model again, or compile it with the compiler that belongs to this driver"
_DRIVER = "driver and library do not fit together, or the device is in a bad state"
_RELOAD = "load the driver again, or restart the machine; `anynpu doctor` looks at both"
_MEMORY = "the device's memory is full or in use by other programs"
_LESS = "close other programs that use the NPU, or use a smaller model"
_ILLEGAL = "the program on the NPU did something that it must not: a badly compiled operator"
_SHAPES = "the model has shapes that change, and they were not stated"

_TABLE: dict[int, tuple[str, str, str]] = {
    0x0: ("SUCCESS", "", ""),
    0x1: ("NULL_PTR", _OURS, _REPORT),
    0x2: ("INVALID_CTX", "the context was closed before", _REPORT),
    0x3: (
        "OPEN_DEV_FAIL",
        "the driver is not loaded, or its device node may not be opened",
        "run `anynpu doctor`: it looks at the module, at /dev/aipu and at its permissions",
    ),
    0x4: ("DEV_ABNORMAL", _DRIVER, _RELOAD),
    0x5: ("DEINIT_FAIL", _DRIVER, _RELOAD),
    0x6: ("INVALID_CONFIG", _OURS, _REPORT),
    0x7: ("UNKNOWN_BIN", _MODEL, _REBUILD),
    0x8: ("GVERSION_UNSUPPORTED", "the program in the model has a version that this library does not read", _REBUILD),
    0x9: ("INVALID_GBIN", _MODEL, _REBUILD),
    0xA: (
        "TARGET_NOT_FOUND",
        "the model was compiled for another NPU than the one here",
        "compile it for the target that `anynpu doctor` shows, such as X2_1204MP3",
    ),
    0xB: ("INVALID_GRAPH_ID", "the graph was unloaded before", _REPORT),
    0xC: ("OPEN_FILE_FAIL", "a file could not be opened", "look at its path and permissions"),
    0xD: ("MAP_FILE_FAIL", "a file could not be mapped into memory", "free memory, and look at the file"),
    0xE: ("READ_FILE_FAIL", "a file could not be read", "look at the file and at the disk"),
    0xF: ("WRITE_FILE_FAIL", "a file could not be written", "look at the folder and at the room on the disk"),
    0x10: ("INVALID_JOB_ID", "the job was cleaned before", _REPORT),
    0x11: (
        "JOB_EXCEPTION",
        "the NPU stopped in the middle: a badly compiled operator, or a fault of the device",
        "run it again; if it stays, compile the model with fewer operators on the NPU, and look at dmesg",
    ),
    0x12: ("JOB_TIMEOUT", "the job took longer than it may", "allow more time, or look whether the NPU is busy"),
    0x13: ("OP_NOT_SUPPORTED", "this version of library or driver does not do that", "update cix-noe-umd"),
    0x14: ("INVALID_OP", "the job is not in a state for that: it did not finish, or timed out before", _REPORT),
    0x15: ("INVALID_SIZE", "a size is zero or does not fit", _REBUILD),
    0x16: ("BUF_ALLOC_FAIL", _MEMORY, _LESS),
    0x17: ("BUF_FREE_FAIL", _DRIVER, _RELOAD),
    0x18: ("INVALID_CORE_ID", "there is no such core", _REPORT),
    0x19: ("RESERVE_SRAM_FAIL", "the NPU's SRAM is in use", _LESS),
    0x1A: ("INVALID_TENSOR_ID", "the model has no tensor of that number", _REPORT),
    0x1B: ("INVALID_CLUSTER_ID", "there is no such cluster", _REPORT),
    0x1C: ("INVALID_PARTITION_ID", "there is no such partition", _REPORT),
    0x1D: ("PRINTF_FAIL", "what the NPU prints could not be read", "run it again"),
    0x1E: ("INVALID_TENSOR_TYPE", "this library has no tensors of that kind", _REPORT),
    0x1F: ("INVALID_GM", "the model wants memory inside the NPU that is not there", _REBUILD),
    0x20: ("INVALID_SEGMMU", "the model wants address ranges that the NPU does not have", _REBUILD),
    0x21: ("INVALID_QOS", "the priority is neither slow nor high", "use one of the two"),
    0x22: ("INVALID_TENSOR_CNT", "the number of tensors does not fit the model", _REBUILD),
    0x23: (
        "TIMEOUT",
        "the NPU did not finish in time: it is busy or hangs",
        "allow more time (ANYNPU_NOE_TIMEOUT_MS); if it stays, load the driver again",
    ),
    0x24: ("NO_BATCH_QUEUE", "there is no such queue", _REPORT),
    0x25: ("MARK_SHARED_TENSOR", "a tensor cannot be shared", _REPORT),
    0x26: ("SET_SHARED_TENSOR", "a tensor cannot be shared", _REPORT),
    0x27: ("DMABUF_SHARED_IO", "a buffer of another device cannot be used", _REPORT),
    0x28: ("GET_SHAPE_FAILED", _SHAPES, "compile the model with fixed shapes"),
    0x29: ("SET_SHAPE_FAILED", _SHAPES, "compile the model with fixed shapes"),
    0x30: ("NOT_CONFIG_SHAPE", _SHAPES, "compile the model with fixed shapes"),
    0x31: ("UNMATCH_OUT_SHAPE", _SHAPES, "compile the model with fixed shapes"),
    0x32: ("ZERO_TENSOR_SIZE", "a tensor of the model is empty", _REBUILD),
    0x33: ("ALLOC_GRIP_ID", _MEMORY, _LESS),
    0x34: ("ALLOC_GROUP_ID", _MEMORY, _LESS),
    0x35: ("NOT_FOUND_IN_HASHTABLE", _MODEL, _REBUILD),
    0x36: ("INVALID_COREDUMP", "the NPU stopped and its dump cannot be read", "look at dmesg"),
    0x37: ("JOB_DISPATCH_FAIL", "the driver did not take the job", _RELOAD),
    0x38: ("MAX", _DRIVER, _RELOAD),
    0x200: ("UNKNOWN_ERROR", "the library does not say", "look at dmesg"),
    0x300: ("KEYBOARD_INTERRUPT", "the program was interrupted", "run it again"),
    0x301: ("SYSTEM_ERR", "the operating system refused something", "look at dmesg"),
    0x380: ("OUT_OF_SPEC", _ILLEGAL, _REBUILD),
    0x381: ("OUT_OF_AIFF_SPEC", _ILLEGAL, _REBUILD),
    0x382: ("OUT_OF_TPC_SPEC", _ILLEGAL, _REBUILD),
    0x383: ("OUT_OF_DMA_SPEC", _ILLEGAL, _REBUILD),
    0x400: ("OUT_OF_MEM_RANGE", _ILLEGAL, _REBUILD),
    0x401: ("OUT_OF_SRAM_RANGE", _ILLEGAL, _REBUILD),
    0x402: ("OUT_OF_LSRAM0_RANGE", _ILLEGAL, _REBUILD),
    0x403: ("OUT_OF_LSRAM1_RANGE", _ILLEGAL, _REBUILD),
    0x404: ("OUT_OF_LSRAM_RANGE", _ILLEGAL, _REBUILD),
    0x405: ("OUT_OF_GSRAM0_RANGE", _ILLEGAL, _REBUILD),
    0x406: ("OUT_OF_GSRAM1_RANGE", _ILLEGAL, _REBUILD),
    0x407: ("OUT_OF_GSRAM_RANGE", _ILLEGAL, _REBUILD),
    0x480: ("ARITHMETIC_ERR", _ILLEGAL, _REBUILD),
    0x481: ("FLOAT_POINT_ERR", _ILLEGAL, _REBUILD),
    0x482: ("UNDERFLOW_ERR", _ILLEGAL, _REBUILD),
    0x483: ("OVERFLOW_ERR", _ILLEGAL, _REBUILD),
    0x484: ("NOT_A_NUMBER_ERR", _ILLEGAL, _REBUILD),
    0x485: ("INFINITY_ERR", _ILLEGAL, _REBUILD),
    0x486: ("STRING_LENGTH_ERR", _ILLEGAL, _REBUILD),
    0x487: ("ZERO_DIVISION_ERR", _ILLEGAL, _REBUILD),
}
STATUSES = {code: Status(*row) for code, row in _TABLE.items()}
_STRANGE = Status("UNKNOWN", "a number that the vendor's header does not have", "compare the version of libnoe")


def explain(code: int) -> Status:
    """Returns what a status number stands for."""
    return STATUSES.get(code, _STRANGE)


def failure(call: str, code: int) -> DeviceError:
    """Returns the error for a call that gave this status."""
    status = explain(code)
    return DeviceError(f"{call} gives {code:#x} ({status.name})", call, code, status.cause, status.fix)
