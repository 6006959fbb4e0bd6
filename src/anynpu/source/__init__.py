"""Where models come from: ONNX files, PyTorch modules, the zoo."""
