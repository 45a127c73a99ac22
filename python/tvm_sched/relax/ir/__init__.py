"""What all stages of the compiler share: module attributes, types of tensors, statements, loops, kernels by name."""

from .block_builders import separate_block_builders

separate_block_builders()
