"""Arm China's Zhouyi NPUs through CIX's compiler."""

from anynpu.targets.zhouyi.target import Zhouyi

__all__ = ["Zhouyi"]
