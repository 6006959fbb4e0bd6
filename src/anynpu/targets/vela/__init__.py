"""Arm Ethos-U through the Vela compiler."""

from anynpu.targets.vela.target import Vela

__all__ = ["Vela"]
