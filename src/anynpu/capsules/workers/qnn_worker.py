"""Inside onnxruntime-qnn's environment: compiles quantised models for the Hexagon NPU and runs them on its simulator.

The CPU is closed to what the NPU does not take unless `open_cpu` says otherwise: ONNX Runtime would use it in silence.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime

    Arrays = dict[str, np.ndarray[Any, Any]]

PROVIDER = "QNNExecutionProvider"
REFUSED = "fallback to CPU EP has been explicitly disabled"
QDQ = ("QuantizeLinear", "DequantizeLinear")
_sessions: dict[str, onnxruntime.InferenceSession] = {}


class Compiled(TypedDict):
    """What came of compiling: name and kind of the operators that the NPU does not take."""

    left: list[list[str]]
    written: bool


@functools.cache
def _device() -> Any:
    """Returns what the provider calls its device; the library is registered once in a process."""
    import onnxruntime
    import onnxruntime_qnn  # type: ignore[import-not-found,unused-ignore]

    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise RuntimeError(f"onnxruntime-qnn offers no {PROVIDER} device here")
    return devices[0]


def _options(arch: int, open_cpu: bool) -> Any:
    import onnxruntime
    import onnxruntime_qnn

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not open_cpu:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    # Without the last one the first QuantizeLinear and the last DequantizeLinear go to the CPU where it is open.
    provider = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "htp_arch": str(arch),
        "offload_graph_io_quantization": "0",
    }
    options.add_provider_for_devices([_device()], provider)
    return options


def compile(model: str, context: str, arch: int, open_cpu: bool = False) -> Compiled:
    """Writes the context model next to its binary, and returns the operators that the NPU does not take.

    Where there are some and the CPU is closed to them, nothing is written that could be run.
    """
    try:
        return {"left": _write_context(model, context, arch, open_cpu), "written": True}
    except Exception as error:
        if REFUSED not in str(error) or open_cpu:
            raise
    return {"left": _write_context(model, context, arch, open_cpu=True), "written": False}


def _write_context(model: str, context: str, arch: int, open_cpu: bool) -> list[list[str]]:
    import onnx
    import onnxruntime

    for path in Path(context).parent.glob(Path(context).stem + "*"):
        path.unlink()  # of the attempt before this one, which writes its context and then refuses the model
    options = _options(arch, open_cpu)
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", context)
    options.add_session_config_entry("ep.context_embed_mode", "0")
    # From memory: the names in the context would otherwise depend on the folder.
    onnxruntime.InferenceSession(Path(model).read_bytes(), options)
    if not Path(context).is_file():
        return []
    nodes = onnx.load(context, load_external_data=False).graph.node
    return [[node.name, node.op_type] for node in nodes if node.op_type not in ("EPContext", *QDQ)]


def load(name: str, model: str, arch: int = 0, open_cpu: bool = False) -> dict[str, list[str]]:
    """Opens a model under a name: on the NPU's simulator, or on the CPU alone where no architecture is given."""
    import onnxruntime

    options = _options(arch, open_cpu) if arch else onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # onnxruntime gives each session a thread for each core; the simulator's own are enough.
    options.intra_op_num_threads = 1
    providers = {} if arch else {"providers": ["CPUExecutionProvider"]}
    session = onnxruntime.InferenceSession(model, options, **providers)
    if arch and PROVIDER not in session.get_providers():
        raise RuntimeError(f"ONNX Runtime did not take {PROVIDER}, but {', '.join(session.get_providers())}")
    _sessions[name] = session
    return {"outputs": [output.name for output in session.get_outputs()]}


def run(name: str, arrays: Arrays | None = None) -> tuple[None, Arrays]:
    """Runs a model that was opened under this name once."""
    session = _sessions[name]
    names = [output.name for output in session.get_outputs()]
    return None, dict(zip(names, session.run(names, arrays or {}), strict=True))
