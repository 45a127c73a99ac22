"""Schedulers, registered by name, a file or folder each: functions from a `Problem` and a `Workload` to a `Schedule`."""

from tvm_sched_runtime.search_budget import SearchLimits

from ..progress import report_progress
from ..registry import NoOptions
from . import anytime, deepplan, efficient_mip, heft, hios, ios, pipelined, single, sortinghat
from .common.events import Move, Run
from .common.partial import Extension, PartialSchedule
from .scheduler_registry import REFERENCES, get, names, register
from .solver import solve

__all__ = [
    "REFERENCES",
    "Extension",
    "Move",
    "NoOptions",
    "PartialSchedule",
    "Run",
    "SearchLimits",
    "anytime",
    "deepplan",
    "efficient_mip",
    "get",
    "heft",
    "hios",
    "ios",
    "names",
    "pipelined",
    "register",
    "report_progress",
    "single",
    "solve",
    "sortinghat",
]
