"""Recurrent layers (LSTM, GRU, RNN): one matrix product for the inputs of all steps, one kernel for the recurrence."""

from .cell import GATES, Cell
from .cell_activations import Activation, make_activation, takes_alpha, takes_beta
from .kernel import ByteProducts, byte_recurrent_kernel, gpu_recurrent_kernel
from .layer import Weights, emit_direction

__all__ = [
    "GATES",
    "Activation",
    "ByteProducts",
    "Cell",
    "Weights",
    "byte_recurrent_kernel",
    "emit_direction",
    "gpu_recurrent_kernel",
    "make_activation",
    "takes_alpha",
    "takes_beta",
]
