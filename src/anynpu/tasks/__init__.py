"""Ready tasks: pure functions between files people have and tensors models take."""
