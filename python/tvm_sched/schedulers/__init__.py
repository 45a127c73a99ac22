"""One method a file, registered by name; each maps a Problem to a Schedule."""

from ..progress import report_progress
from ..registry import NoOptions
from . import auto, deepplan, efficient_mip, exact, heft, hios, ios, pipelined, single, sortinghat
from .registry import REFERENCES, get, names, register, solve

__all__ = [
    "REFERENCES",
    "NoOptions",
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
