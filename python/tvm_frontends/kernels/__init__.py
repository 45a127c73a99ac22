"""Kernels that converters emit where Relax has no operator: recurrent layers, bounded results, decision trees."""
