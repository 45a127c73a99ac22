"""One method a file, registered by name; each maps a Problem to a Schedule."""

from . import deepplan, efficient_mip, exact, pipelined, single, sortinghat
from .registry import REFERENCES, NoOptions, Scheduler, get, names, register, report_progress, solve

__all__ = [
    "REFERENCES",
    "NoOptions",
    "Scheduler",
    "deepplan",
    "efficient_mip",
    "exact",
    "get",
    "names",
    "pipelined",
    "register",
    "report_progress",
    "single",
    "solve",
    "sortinghat",
]
