"""The scheduler `anytime`: the default method for schedules."""

from .improver_registry import register_improver
from .scheduler import AnytimeOptions, anytime

__all__ = ["AnytimeOptions", "anytime", "register_improver"]
