"""Helpers that all stages of the compiler share: module attributes, tensor types, statements, loops, kernel names."""

from .block_builders import separate_block_builders

separate_block_builders()
