"""The computation of a recurrent layer, and the layout of its weights for the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .cell_activations import Activation

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Number of gates of each kind of cell, in ONNX's order: LSTM input, output, forget, cell; GRU update, reset, hidden."""
LANES = 64
"""Sums of one pass over a block of the recurrent weights: eight vectors of AVX, four of AVX-512."""
ROWS = 4
"""Most sequences of a batch that share one pass over the weights."""

MOST_BYTES = 1 << 16
"""Fewest hidden units whose products of bytes might not be within 32 bits."""


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent layer."""

    kind: str
    steps: Any
    batch: Any
    hidden: int
    """Length of the longest sequence, sequences, and hidden units; the first two are expressions where they are open."""
    activations: tuple[Activation, ...]
    """Activations in ONNX's order: LSTM f, g, h; GRU f, g; RNN f."""
    clip: float | None = None
    """Bound of the arguments of the gates' activations."""
    reverse: bool = False
    """Whether the steps run from the last to the first."""
    lengths: bool = False
    """Whether each sequence has its own length."""
    peepholes: bool = False
    """LSTM: whether gates read the cell's state."""
    input_forget: bool = False
    """LSTM: whether the forget gate is one minus the input gate."""
    linear_before_reset: bool = False
    """GRU: whether the reset gate applies to the product with the recurrent weights, and not to the state before it."""
    rounded_state: bool = False
    """LSTM: whether each sequence's state is rounded to 8 bits of its range before each product, as
    ``com.microsoft.DynamicQuantizeLSTM`` does."""
    weights: str = ""
    """The type of the recurrent weights, if they are integers with a factor for each gate; else it is ``dtype``."""
    dtype: str = "float32"

    @property
    def gates(self) -> int:
        """Number of gates of the cell."""
        return GATES[self.kind]

    @property
    def is_open(self) -> bool:
        """Whether the kernel takes steps and batch from its tensors."""
        return not (isinstance(self.steps, int) and isinstance(self.batch, int))

    @property
    def rows(self) -> int:
        """Most sequences of the batch that share one pass over the weights; the last ones of an open batch do not."""
        if not isinstance(self.batch, int):
            return ROWS
        return max(rows for rows in range(1, ROWS + 1) if self.batch % rows == 0)

    @property
    def units(self) -> int:
        """Hidden units of a block, whose gates are computed together."""
        lanes = LANES if self.rows == 1 else LANES // 2
        wanted = {4: lanes // 4, 3: lanes // 2, 1: lanes}[self.gates]
        return min(wanted, -(-self.hidden // 4) * 4)

    @property
    def byte_products(self) -> bool:
        """Whether a step multiplies bytes and adds the products as integers."""
        return self.rounded_state and self.weights == "int8" and self.hidden < MOST_BYTES

    @property
    def blocks(self) -> int:
        """Blocks of hidden units; the last one may be padded with unused units."""
        return -(-self.hidden // self.units)

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """Ranges of gates computed from one state; a later phase needs the result of the phase before."""
        if self.kind == "gru" and not self.linear_before_reset:
            return ((0, 2), (2, 3))
        return ((0, self.gates),)
