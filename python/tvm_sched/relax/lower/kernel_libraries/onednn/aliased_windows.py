"""Convolutions over one dimension whose windows begin a multiple of 4 KiB apart, as products of copies of the windows.

oneDNN's own convolution then reads rows that fall into the same sets of the first-level cache: on two cores it reached 53 to
170 GFLOP/s where windows of other distances, and products of their copies, reach 195 to 217 (256 to 1024 channels, strides 2
and 4). wav2vec2's feature extractor is made of such.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir.tensor_types import static_shape

FEWEST_PLACES, FEWEST_OUTPUTS = 128, 256
"""With fewer, the convolution is as fast."""
ALIASED = 1024
"""Floats in 4 KiB."""


def is_line(call: Any) -> bool:
    """Whether a convolution is better computed as a product."""
    shape, filters, out, attrs = *((static_shape(e) or ()) for e in (*call.args, call)), call.attrs
    if len(shape) != 3 or int(attrs.groups) != 1 or [int(d) for d in attrs.dilation] != [1]:
        return False
    stride = int(attrs.strides[0])
    enough = out[1] >= FEWEST_PLACES and filters[0] >= FEWEST_OUTPUTS
    return enough and filters[2] > stride and stride * filters[1] % ALIASED == 0


def arranged(weights: Any) -> Any:
    """Weights (outputs, channels, places of the window) as a product reads them: (places and channels, outputs)."""
    return np.ascontiguousarray(weights.transpose(2, 1, 0)).reshape(-1, weights.shape[0])
