"""Random models by hypothesis: ONNX graphs (`onnx_graphs`) and torch modules (`torch_modules`), and what they should compute."""
