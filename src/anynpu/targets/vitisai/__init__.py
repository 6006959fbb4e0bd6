"""AMD's Ryzen AI NPUs: models quantised by AMD Quark for the VitisAI execution provider."""

from anynpu.targets.vitisai.target import VitisAi

__all__ = ["VitisAi"]
