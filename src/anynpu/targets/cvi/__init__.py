"""CVITEK and SOPHGO chips through the TPU-MLIR compiler."""

from anynpu.targets.cvi.target import Cvi

__all__ = ["Cvi"]
