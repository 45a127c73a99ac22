"""The passes from a Relax module to a scheduled executable, each usable alone in ``tvm.transform.Sequential``."""

from .allocate_streams import AllocateStreams
from .emit_executor import EmitExecutor
from .emit_pipeline import EmitPipeline
from .estimate import EstimateLatencies
from .lower import LowerToKernels
from .measure import MeasureSchedules
from .order_launches import OrderLaunches
from .partition_pipeline import PartitionPipeline
from .place import Place
from .split import SplitByDominators
from .split_tail import SplitTail

__all__ = [
    "AllocateStreams",
    "EmitExecutor",
    "EmitPipeline",
    "EstimateLatencies",
    "LowerToKernels",
    "MeasureSchedules",
    "OrderLaunches",
    "PartitionPipeline",
    "Place",
    "SplitByDominators",
    "SplitTail",
]
