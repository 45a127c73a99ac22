"""Random models by hypothesis, ONNX graphs and torch modules, and what they should compute."""
