"""Measurements: fidelity, accuracy, latency."""
