"""Kernels for operators that Relax lacks: recurrent layers, packed products, data-dependent sizes, decision trees."""
