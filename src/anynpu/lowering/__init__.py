"""ONNX graphs as TFLite operators: lowered, quantised and written here, without anyone else's converter."""
