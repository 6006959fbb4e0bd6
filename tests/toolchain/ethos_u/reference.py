"""The C that executes streams in firmware trees, as a library, in the place of the twin's own machine."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.model import Model, NpuCall
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.runtime.ethos_u.weights import Decoder

FILES = Path(__file__).parents[3] / "src/anynpu/firmware/project/files/ethos-u-reference/npu"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic")
WORKING_BYTES = 64 << 20


def build(folder: Path, *flags: str, working: int = WORKING_BYTES) -> Path:
    """Returns the shared library of the C files."""
    library = folder / "libreference.so"
    argv = ["gcc", *STRICT, *flags, f"-DETHOSU_REFERENCE_BYTES={working}", "-shared", "-fPIC", f"-I{FILES}"]
    subprocess.run([*argv, *map(str, sorted(FILES.glob("ethosu_*.c"))), "-o", str(library)], check=True)
    return library


class Reference:
    """The library's invoke call."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.ethosu_reserve_driver.restype = ctypes.c_void_p
        self._library.ethosu_reference_fault.restype = ctypes.c_char_p

    def invoke(self, payload: bytes, regions: list[np.ndarray]) -> str:
        """Executes a payload on memories; returns why it could not, or an empty string."""
        count = len(regions)
        bases = (ctypes.c_uint64 * count)(*(region.ctypes.data for region in regions))
        sizes = (ctypes.c_size_t * count)(*(region.nbytes for region in regions))
        driver = ctypes.c_void_p(self._library.ethosu_reserve_driver())
        status = self._library.ethosu_invoke_v3(driver, payload, len(payload), bases, sizes, count, None)
        operation = ctypes.c_uint32()
        fault = self._library.ethosu_reference_fault(ctypes.byref(operation))
        assert (status == 0) == (fault is None), (status, fault)
        return "" if fault is None else f"operation {operation.value}: {fault.decode()}"


class ReferenceTwin(Twin):
    """A twin whose streams are executed by both: the arena must be the same after each, and what one refuses the other
    must refuse."""

    def __init__(
        self, model: Model, payloads: list[bytes], reference: Reference, decoder: Decoder | None = None
    ) -> None:
        super().__init__(model, decoder)
        self._reference = reference
        npu = [call for call in model.calls if isinstance(call, NpuCall)]
        self._payloads = dict(zip(map(id, npu), payloads, strict=True))
        self.differing: list[str] = []

    def _npu(self, call: NpuCall, arena: np.ndarray) -> None:
        before, refusal = arena.copy(), None
        try:
            super()._npu(call, arena)
        except IntegrityError as error:
            refusal = error
        scratch = call.scratch
        for sample, row in enumerate(before):
            start = max(scratch.offset, 0)
            memory = row[start : start + scratch.nbytes].copy()
            fast = memory
            if call.scratch_fast.index != scratch.index:
                fast = np.zeros(call.scratch_fast.nbytes, np.uint8)
            constants = np.ascontiguousarray(call.read_only)
            fault = self._reference.invoke(self._payloads[id(call)], [constants, memory, fast])
            if refusal is not None:
                self.differing += [] if fault else [f"the C executes what the twin refuses: {refusal.message}"]
                continue
            wrong = int((memory != arena[sample, start : start + scratch.nbytes]).sum())
            if fault or wrong:
                self.differing.append(fault or f"{wrong} of {len(memory)} bytes of the arena")
        if refusal is not None:
            raise refusal


def payloads(path: Path) -> list[bytes]:
    """Returns the command stream of each `ethos-u` operator of a Vela file."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    graph = model.subgraphs[0]
    return [
        bytes(model.buffers[graph.tensors[op.inputs[0]].buffer].data)
        for op in graph.operators
        if model.operatorCodes[op.opcodeIndex].customCode == b"ethos-u"
    ]
