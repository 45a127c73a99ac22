"""Schedules that run a neural network's operators over several devices at once, and say how good they are.

This package's root imports neither TVM nor a solver: a problem file can be read, scheduled and looked at without them.
"""

__version__ = "0.1.0"
