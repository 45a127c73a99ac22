"""The tools that make machine code: processor levels, nvcc, the linker, and their failures."""
