"""Lower Relax operators to kernel calls: workarounds for TVM, constant folding, kernel libraries."""
