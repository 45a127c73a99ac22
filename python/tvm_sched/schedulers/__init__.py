"""One method a file, registered by name; each maps a Problem to a Schedule."""

from . import auto, exact, heft, hios, ios, single
from .registry import NoOptions, Scheduler, get, names, register, report_progress, solve

__all__ = [
    "NoOptions",
    "Scheduler",
    "auto",
    "exact",
    "get",
    "heft",
    "hios",
    "ios",
    "names",
    "register",
    "report_progress",
    "single",
    "solve",
]
