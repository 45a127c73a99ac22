"""Streams within devices: assignment of operators to streams, launch order of kernels, and waits."""

from .core_shares import core_shares
from .launch_order import LAUNCH_ORDERS, order_launches
from .stream_allocation import ALLOCATORS, allocate_streams, count_synchronizations, limit_streams
from .stream_choice import BEST, best_launch_order, best_streams, check_methods, choose_launch_order, choose_streams

__all__ = [
    "ALLOCATORS",
    "BEST",
    "LAUNCH_ORDERS",
    "allocate_streams",
    "best_launch_order",
    "best_streams",
    "check_methods",
    "choose_launch_order",
    "choose_streams",
    "core_shares",
    "count_synchronizations",
    "limit_streams",
    "order_launches",
]
