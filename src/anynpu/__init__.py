"""anynpu: one model in, any NPU out. Compile it, prove it, run it, measure it, serve it."""

import os

__version__ = "0.1.0"

# ONNX Runtime's Linux wheels hold Microsoft's telemetry, which draws a device id and keeps events below ~/.cache
# (seen in 1.31.1) unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
