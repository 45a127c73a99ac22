"""Import of torch.export programs: decomposed by torch, converted by TVM's front end and by converters here."""

from .import_program import load, open_exported_program, read_exported_program

__all__ = ["load", "open_exported_program", "read_exported_program"]
