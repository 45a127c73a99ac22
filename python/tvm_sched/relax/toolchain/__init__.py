"""The tools that generate machine code: compile targets, nvcc, the linker, and explanations of their failures."""
