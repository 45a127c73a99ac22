"""The passes from a Relax module to a scheduled executable, each usable alone in ``tvm.transform.Sequential``."""

from .emit.emit_executor import EmitExecutor
from .emit.emit_pipeline import EmitPipeline
from .lower.lower_to_kernels import LowerToKernels
from .lower.split_tail import SplitTail
from .place.allocate_streams import AllocateStreams
from .place.order_launches import OrderLaunches
from .place.partition_pipeline import PartitionPipeline
from .place.place import Place
from .place.split_by_dominators import SplitByDominators
from .problem.estimate_latencies import EstimateLatencies
from .profiling.measure_schedules import MeasureSchedules

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
