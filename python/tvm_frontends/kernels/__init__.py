"""Kernels for operators that Relax lacks: recurrent layers, results of data-dependent size, decision trees."""
