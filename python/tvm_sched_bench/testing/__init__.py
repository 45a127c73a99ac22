"""Random problems and schedules from a seed, for tests of schedulers, bounds and executors."""

from .bus_order import in_pieces, in_turns, reorder_loads
from .fair_buses import fair_latency
from .graphs import random_graph
from .problems import random_problem
from .schedules import random_schedule
from .streams import random_concurrency, random_stages, random_streams
from .topologies import random_topology
from .variant_problems import random_variants

__all__ = [
    "fair_latency",
    "in_pieces",
    "in_turns",
    "random_concurrency",
    "random_graph",
    "random_problem",
    "random_schedule",
    "random_stages",
    "random_streams",
    "random_topology",
    "random_variants",
    "reorder_loads",
]
