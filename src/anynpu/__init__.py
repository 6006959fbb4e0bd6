"""anynpu: one model in, any NPU out. Compile it, prove it, run it, measure it, serve it."""

__version__ = "0.1.0"
