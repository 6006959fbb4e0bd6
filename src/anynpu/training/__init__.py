"""Training with rounding in the loop, so that few bits keep the model."""
