"""`ProgramResult`: the result of the programs of `integer_programs` and `block_program`."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem.partition_problem import Integers


@dataclass(frozen=True)
class ProgramResult:
    """What a solver found out about a program.

    Attributes
    ----------
    bound : float
        No partition has a cheaper bottleneck.
    stage_of : array of int or None
        Block of each node in the best solution, where there is one.
    proved : bool
        Whether the program was solved to the end.
    """

    bound: float
    stage_of: Integers | None = None
    proved: bool = False
