"""One method a file, registered by name; each maps a Problem to a Schedule."""

from ..progress import report_progress
from ..registry import NoOptions
from . import anytime, deepplan, efficient_mip, heft, hios, ios, pipelined, single, sortinghat
from .common.events import Move, Run
from .common.partial import PartialSchedule, Plan
from .registry import REFERENCES, get, names, register, solve

__all__ = [
    "REFERENCES",
    "Move",
    "NoOptions",
    "PartialSchedule",
    "Plan",
    "Run",
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
