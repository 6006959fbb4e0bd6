"""The MAX78000 and MAX78002 of Analog Devices."""

from anynpu.targets.ai8x.target import Ai8x

__all__ = ["Ai8x"]
