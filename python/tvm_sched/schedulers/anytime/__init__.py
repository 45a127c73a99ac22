"""The scheduler `anytime`: the default method for schedules."""

from .scheduler import AnytimeOptions, anytime

__all__ = ["AnytimeOptions", "anytime"]
