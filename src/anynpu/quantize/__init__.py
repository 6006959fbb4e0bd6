"""Calibration data, range methods, the quantisation plan, and the emitters that apply it."""
