"""The names of what training leaves in an artifact."""

from __future__ import annotations

RECORD = "training.json"
"""What training found, next to the trained model: the compilers behind it take its ranges and scales as they are."""
INTEGERS = "integers.npz"
"""The weights that training ended with, as integers, by the name of the ONNX initializer."""
