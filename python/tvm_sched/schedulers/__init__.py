"""One method a file, registered by name; each maps a Problem to a Schedule."""

from . import auto, deepplan, efficient_mip, exact, heft, hios, ios, pipelined, single, sortinghat
from .registry import REFERENCES, NoOptions, Scheduler, get, names, register, report_progress, solve

__all__ = [
    "REFERENCES",
    "NoOptions",
    "Scheduler",
    "auto",
    "deepplan",
    "efficient_mip",
    "exact",
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
