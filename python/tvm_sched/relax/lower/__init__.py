"""From Relax operators to kernel calls: corrections of TVM, folding, kernel libraries."""
