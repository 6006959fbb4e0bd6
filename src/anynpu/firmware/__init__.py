"""Firmware: C generated from a quantised model, and the projects around it."""
