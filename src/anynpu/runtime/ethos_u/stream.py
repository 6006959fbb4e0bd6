"""The command stream inside a Vela file: driver actions, register writes, and the operations they start.

A stream only writes registers and starts operations; a register keeps its value until it is written again, so an
operation here is a kind, a mode and the registers as they stood when it started.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from anynpu.errors import IntegrityError

MAGIC = b"COP1"
CONFIGURE, COMMANDS, NOTHING = 1, 2, 5
"""Driver actions: what the stream was compiled for, the commands themselves, padding."""
PRODUCTS = {0: "Ethos-U55", 1: "Ethos-U65", 2: "Ethos-U85"}
MACS = {0: (32, 64, 128, 256), 1: (256, 512), 2: (128, 256, 512, 1024, 2048)}
"""Multiply-accumulates per cycle that each product is built with."""
MAX_OPERATIONS = 1_000_000

OPERATIONS = {0x02: "conv", 0x03: "depthwise", 0x05: "pool", 0x06: "elementwise", 0x07: "resize", 0x10: "dma"}
WAITS = {0x11: "dma", 0x12: "kernel"}
"""Wait until no more than this many transfers or computations run: what is executed in order need not."""
IGNORED = {0x01, 0x13}
"""Interrupts and counters."""
STOP = 0x00

SHORT_REGISTERS = {
    0x100: "IFM_PAD_TOP",
    0x101: "IFM_PAD_LEFT",
    0x102: "IFM_PAD_RIGHT",
    0x103: "IFM_PAD_BOTTOM",
    0x104: "IFM_DEPTH_M1",
    0x105: "IFM_PRECISION",
    0x107: "IFM_UPSCALE",
    0x108: "IFM_BROADCAST",
    0x109: "IFM_ZERO_POINT",
    0x10A: "IFM_WIDTH0_M1",
    0x10B: "IFM_HEIGHT0_M1",
    0x10C: "IFM_HEIGHT1_M1",
    0x10D: "IFM_IB_END",
    0x10F: "IFM_REGION",
    0x111: "OFM_WIDTH_M1",
    0x112: "OFM_HEIGHT_M1",
    0x113: "OFM_DEPTH_M1",
    0x114: "OFM_PRECISION",
    0x115: "OFM_BLK_WIDTH_M1",
    0x116: "OFM_BLK_HEIGHT_M1",
    0x117: "OFM_BLK_DEPTH_M1",
    0x118: "OFM_ZERO_POINT",
    0x11A: "OFM_WIDTH0_M1",
    0x11B: "OFM_HEIGHT0_M1",
    0x11C: "OFM_HEIGHT1_M1",
    0x11F: "OFM_REGION",
    0x120: "KERNEL_WIDTH_M1",
    0x121: "KERNEL_HEIGHT_M1",
    0x122: "KERNEL_STRIDE",
    0x123: "PARALLEL_MODE",
    0x124: "ACC_FORMAT",
    0x125: "ACTIVATION",
    0x126: "ACTIVATION_MIN",
    0x127: "ACTIVATION_MAX",
    0x128: "WEIGHT_REGION",
    0x129: "SCALE_REGION",
    0x12A: "RESIZE_X_SCALE_N_M1",
    0x12B: "RESIZE_Y_SCALE_N_M1",
    0x12C: "RESIZE_X_OFFSET",
    0x12D: "RESIZE_Y_OFFSET",  # AB_START before the U85
    0x12E: "WEIGHT_FORMAT",
    0x12F: "BLOCKDEP",
    0x130: "DMA0_SRC_REGION",
    0x131: "DMA0_DST_REGION",
    0x132: "DMA0_SIZE0",
    0x133: "DMA0_SIZE1",
    0x134: "DMA0_IDX_REGION",
    0x180: "IFM2_BROADCAST",
    0x181: "IFM2_SCALAR",
    0x185: "IFM2_PRECISION",
    0x189: "IFM2_ZERO_POINT",
    0x18A: "IFM2_WIDTH0_M1",
    0x18B: "IFM2_HEIGHT0_M1",
    0x18C: "IFM2_HEIGHT1_M1",
    0x18D: "IFM2_IB_START",
    0x18F: "IFM2_REGION",
}
LONG_REGISTERS = {
    0x00: "IFM_BASE0",
    0x01: "IFM_BASE1",
    0x02: "IFM_BASE2",
    0x03: "IFM_BASE3",
    0x04: "IFM_STRIDE_X",
    0x05: "IFM_STRIDE_Y",
    0x06: "IFM_STRIDE_C",
    0x10: "OFM_BASE0",
    0x11: "OFM_BASE1",
    0x12: "OFM_BASE2",
    0x13: "OFM_BASE3",
    0x14: "OFM_STRIDE_X",
    0x15: "OFM_STRIDE_Y",
    0x16: "OFM_STRIDE_C",
    0x20: "WEIGHT_BASE",
    0x21: "WEIGHT_LENGTH",
    0x22: "SCALE_BASE",
    0x23: "SCALE_LENGTH",
    0x24: "OFM_SCALE",
    0x25: "IFM_SCALE",  # OPA_SCALE before the U85
    0x26: "IFM2_SCALE",  # OPB_SCALE before the U85
    0x27: "OP_SCALAR",
    0x30: "DMA0_SRC",
    0x31: "DMA0_DST",
    0x32: "DMA0_LEN",
    0x33: "DMA0_SRC_STRIDE0",  # DMA0_SKIP0 before the U85
    0x34: "DMA0_SRC_STRIDE1",  # DMA0_SKIP1 before the U85
    0x35: "DMA0_DST_STRIDE0",
    0x36: "DMA0_DST_STRIDE1",
    0x37: "DMA0_IDX",
    0x38: "DMA0_IDX_MAX",
    0x39: "DMA0_IDX_SKIP1",
    0x80: "IFM2_BASE0",
    0x81: "IFM2_BASE1",
    0x82: "IFM2_BASE2",
    0x83: "IFM2_BASE3",
    0x84: "IFM2_STRIDE_X",
    0x85: "IFM2_STRIDE_Y",
    0x86: "IFM2_STRIDE_C",
    0x90: "WEIGHT1_BASE",
    0x91: "WEIGHT1_LENGTH",
    0x92: "SCALE1_BASE",  # WEIGHT2_BASE on the U85
    0x93: "SCALE1_LENGTH",  # WEIGHT2_LENGTH on the U85
    0x94: "WEIGHT3_BASE",
    0x95: "WEIGHT3_LENGTH",
    0x96: "RESIZE_X",
    0x97: "RESIZE_Y",
}


@dataclass(frozen=True)
class Operation:
    """One operation of a stream and the registers that it starts with."""

    index: int
    word: int
    """Where in the commands it starts, in words."""
    kind: str
    mode: int
    registers: Mapping[str, int]
    dma_wait: int | None = None
    """How many transfers may still run when it starts; None where nothing waits for them."""
    kernel_wait: int | None = None

    @property
    def title(self) -> str:
        return f"operation {self.index} ({self.kind}, word {self.word})"

    def register(self, name: str) -> int:
        """Returns the 16 bits of a short register, or the 32 bits of a long one with 16 more above them."""
        try:
            return self.registers[name]
        except KeyError:
            raise IntegrityError(f"{self.title}: register {name} was never written") from None

    def address(self, name: str) -> int:
        """Returns a register that holds an address or a length: 40 bits."""
        return self.register(name) & 0xFF_FFFF_FFFF

    def stride(self, name: str) -> int:
        """Returns a register that holds a distance in bytes, which may be negative."""
        value = self.address(name)
        return value - (1 << 40) if value >> 39 else value


@dataclass(frozen=True)
class Stream:
    """The commands for an NPU, and which NPU."""

    product: int
    macs: int
    operations: tuple[Operation, ...]
    cores: int = 1

    @property
    def title(self) -> str:
        return f"{PRODUCTS[self.product]}-{self.macs}"


def read_stream(payload: bytes) -> Stream:
    """Returns the operations of the payload of an `ethos-u` operator; a damaged one raises."""
    if payload[:4] != MAGIC or len(payload) % 4:
        raise IntegrityError("the command stream does not begin with COP1")
    words = struct.unpack(f"<{len(payload) // 4}I", payload)
    product = macs = -1
    position = 1
    while position < len(words):
        action, length = words[position] & 0xFF, words[position] >> 16 | (words[position] >> 8 & 0xFF) << 16
        if action == CONFIGURE and position + 2 < len(words):
            product, macs = words[position + 1] >> 28, 1 << (words[position + 1] & 0xF)
            position += 3
        elif action == NOTHING:
            position += 1
        elif action == COMMANDS and product in PRODUCTS:
            if position + 1 + length > len(words):
                raise IntegrityError(f"the command stream is cut off: {length} words promised")
            if macs not in MACS[product]:
                raise IntegrityError(f"the command stream is for an {PRODUCTS[product]} of {macs} MACs: there is none")
            operations = read_operations(words[position + 1 : position + 1 + length])
            parallel = any(op.registers.get("PARALLEL_MODE") for op in operations[:1])
            return Stream(product, macs, operations, 2 if parallel and product == 1 else 1)
        else:
            raise IntegrityError(f"the command stream has an unknown driver action {action} in word {position}")
    raise IntegrityError("the command stream has no commands")


def read_operations(words: tuple[int, ...]) -> tuple[Operation, ...]:
    """Returns the operations that register commands start, each with the registers of its moment."""
    registers: dict[str, int] = {}
    operations: list[Operation] = []
    waits: dict[str, int] = {}
    position = 0
    while position < len(words):
        word, start = words[position], position
        code, parameter, long = word & 0x3FF, word >> 16, word >> 14 & 3
        position += 1
        if long == 1:
            if position >= len(words) or code not in LONG_REGISTERS:
                raise IntegrityError(f"word {start} of the commands is not a register command: {word:#010x}")
            registers[LONG_REGISTERS[code]] = words[position] | parameter << 32
            position += 1
        elif long != 0:
            raise IntegrityError(f"word {start} of the commands is not a register command: {word:#010x}")
        elif code in SHORT_REGISTERS:
            registers[SHORT_REGISTERS[code]] = parameter
        elif code in OPERATIONS:
            waited = (waits.get("dma"), waits.get("kernel"))
            operations.append(Operation(len(operations), start, OPERATIONS[code], parameter, dict(registers), *waited))
            waits = {}
            if len(operations) > MAX_OPERATIONS:
                raise IntegrityError(f"the command stream has more than {MAX_OPERATIONS} operations")
        elif code in WAITS:
            waits[WAITS[code]] = min(parameter, waits.get(WAITS[code], parameter))
        elif code == STOP:
            return tuple(operations)
        elif code not in IGNORED:
            raise IntegrityError(f"word {start} of the commands is not a register command: {word:#010x}")
    raise IntegrityError("the command stream does not end with a stop")
