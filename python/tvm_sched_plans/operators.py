"""A graph of operators from a file, as units that run one after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_sched_runtime.problem import OpGraph

from .unit_model import Phase, UnitModel

_OF_FAMILIES = {
    "library.matmul": "MatMul MatMulInteger FusedMatMul Gemm linear addmm mm bmm baddbmm matmul",
    "library.conv2d": "Conv ConvInteger QLinearConv ConvTranspose conv1d conv2d conv3d convolution",
    "library.attention": "Attention MultiHeadAttention scaled_dot_product_attention",
    "softmax": "Softmax LogSoftmax softmax log_softmax _softmax",
    "norm": "LayerNormalization BatchNormalization InstanceNormalization GroupNormalization RMSNormalization LRN "
    "SimplifiedLayerNormalization SkipLayerNormalization layer_norm native_layer_norm batch_norm group_norm rms_norm "
    "_native_batch_norm_legit_no_training native_group_norm",
    "pool2d": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool max_pool2d max_pool2d_with_indices avg_pool2d "
    "adaptive_avg_pool2d _adaptive_avg_pool2d",
    "mean": "ReduceMean ReduceSum ReduceMax ReduceMin ArgMax mean sum amax argmax",
    "take": "Gather GatherElements embedding index_select gather",
    "transpose": "Transpose Concat Split Slice Pad Expand Tile cat split slice permute transpose clone contiguous expand",
    "library.lstm": "LSTM GRU RNN lstm gru",
}
_KINDS = {name: kind for kind, names in _OF_FAMILIES.items() for name in names.split()}


def priced_kind(name: str) -> str:
    """Return the kind by which a cost model knows an operator of ONNX or PyTorch; other operators are elementwise.

    >>> priced_kind("Gemm"), priced_kind("Relu")
    ('library.matmul', 'Relu')
    """
    return _KINDS.get(name, name)


@dataclass(frozen=True)
class OperatorModel:
    """A model whose operators are placed separately."""

    kind: str
    path: Path
    graph: OpGraph
    """Operators in an order in which they can run."""
    loaded: Any = field(repr=False)
    """Content of the file, which the writers of plans read."""
    names: tuple[str, ...]
    """Name of each operator of the graph in the file."""
    free: frozenset[int] = frozenset()
    """Operators that move no bytes."""
    external: bool = False
    """Whether weights lie in files beside the model's."""

    def units(self, engine: str = "") -> UnitModel:
        """Return a model in which each operator is a unit and runs once; ``engine``: see `Phase.engine`."""
        members = tuple((o,) for o in range(len(self.graph.operators)))
        phase = Phase("run", self.graph, self.graph, members, free=self.free, engine=engine)
        return UnitModel(self.graph.name, self.names, (phase,))
