"""The rules of ONNX operators, by family."""
