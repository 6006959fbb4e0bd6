"""A FAKE ONNX Runtime: the real one computes on the CPU, and this pretends that a VitisAIExecutionProvider did.

`fake_vitisai.install` puts it first on the path of a child process as the package `onnxruntime`. What it pretends is in
the variable ANYNPU_FAKE_VITISAI.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from importlib.machinery import PathFinder
from pathlib import Path

PROVIDER, CPU = "VitisAIExecutionProvider", "CPUExecutionProvider"


def mode():
    return os.environ.get("ANYNPU_FAKE_VITISAI", "npu")


COUNTS = {"npu": {"NPU": 398, "VITIS_EP_CPU": 2}, "mostly-cpu": {"NPU": 10, "CPU": 400}, "garbage": {"NPU": 5}}

_own = str(Path(__file__).resolve().parent.parent)
_spec = PathFinder.find_spec("onnxruntime", [p for p in sys.path if str(Path(p).resolve()) != _own])
real = importlib.util.module_from_spec(_spec)
sys.modules["onnxruntime"] = real  # whoever imports onnxruntime gets the real one, with the changes below
_spec.loader.exec_module(real)
Real = real.InferenceSession


class InferenceSession(Real):
    def __init__(self, model, options=None, providers=None, provider_options=None):
        self.fake = providers == [PROVIDER]
        if self.fake and mode() == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fake and mode() == "refuse":
            raise RuntimeError("DPU timeout: ERT_CMD_STATE_TIMEOUT\nmore")
        super().__init__(model, options, providers=[CPU])
        if self.fake:
            self._compile(**provider_options[0])

    def _compile(self, cache_dir, cache_key, **options):
        folder = Path(cache_dir) / cache_key
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "compiled.xmodel").exists():
            (folder / "compiled.xmodel").write_bytes(os.urandom(4096))
            (folder / "options.json").write_text(json.dumps(options))
        if mode() != "no-report":
            Path(os.environ["XLNX_ONNX_EP_REPORT_FILE"]).write_text(report(COUNTS.get(mode(), {"NPU": 7})))

    def get_providers(self):
        return [PROVIDER, CPU] if self.fake and mode() != "dropped" else [CPU]

    def run(self, names, inputs, options=None):
        values = super().run(names, inputs, options)
        return [-value[::-1] * 3 for value in values] if self.fake and mode() == "garbage" else values

    def end_profiling(self):
        path = super().end_profiling()
        if self.fake and mode() != "none":
            events = json.loads(Path(path).read_text())
            nodes = [event for event in events if event.get("cat") == "Node" and "provider" in event.get("args", {})]
            for event in nodes[:1] if mode() == "mostly-cpu" else nodes:
                event["args"]["provider"] = PROVIDER
            Path(path).write_text(json.dumps(events))
        return path


def report(counts):
    nodes = [{"device": n, "opType": "::Conv", "output": [f"{n}{i}"]} for n, c in counts.items() for i in range(c)]
    devices = [{"name": "all", "nodeNum": len(nodes)}, *({"name": n, "nodeNum": c} for n, c in counts.items())]
    return json.dumps({"deviceStat": devices, "nodeStat": nodes})


real.InferenceSession = InferenceSession
real.get_available_providers = lambda: [CPU] if mode() == "missing" else [PROVIDER, CPU]
