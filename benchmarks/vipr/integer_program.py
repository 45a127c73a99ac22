"""An integer program and derivations from its constraints, as a VIPR certificate of version 1.0.

The format is that of K. K. H. Cheung, A. Gleixner, D. E. Steffy, *Verifying Integer Programming Results* (IPCO 2017).
A derivation is a linear combination of earlier rows, possibly rounded, or joins the two cases ``x <= 0`` and ``x >= 1`` of
an integer variable. This module computes each derived row itself, so that a file that it writes states what follows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

Number = int | Fraction
Terms = Mapping[int, Number]
"""Multipliers by row."""

LESS, EQUAL, GREATER = -1, 0, 1
_LETTERS = {LESS: "L", EQUAL: "E", GREATER: "G"}


@dataclass(frozen=True)
class Row:
    """``coefficients`` times the variables is at most, equal to or at least ``right``."""

    label: str
    sense: int
    right: Number
    coefficients: Mapping[int, Number]
    reason: tuple[str, tuple[tuple[int, Number], ...]] | None = None
    """Of a derived row: the rule's name, and the rows (with multipliers) that it uses. None for a constraint."""


class IntegerProgram:
    """Variables, constraints and derived rows. Constraints are numbered 0, 1, ..., derived rows -1, -2, ..."""

    def __init__(self) -> None:
        self.variables: list[str] = []
        self.constraints: list[Row] = []
        self.derived: list[Row] = []

    def variable(self, name: str) -> int:
        """Add an integer variable; return its number."""
        self.variables.append(name)
        return len(self.variables) - 1

    def constraint(self, label: str, coefficients: Mapping[int, Number], right: int = 0, sense: int = GREATER) -> int:
        """Add a constraint; return its number."""
        self.constraints.append(Row(label, sense, right, dict(coefficients)))
        return len(self.constraints) - 1

    def row(self, number: int) -> Row:
        """Return a constraint or derived row by number."""
        return self.constraints[number] if number >= 0 else self.derived[-1 - number]

    def combine(self, label: str, terms: Terms, round_up: bool = False, most: float = math.inf) -> int:
        """Derive a linear combination; with ``round_up`` its right-hand side is rounded up (Chvátal-Gomory).

        The row states no more than ``most`` of what is derived.
        """
        row = self._combined(label, terms)
        if round_up:
            ceiling = math.ceil(row.right)
            right = ceiling if ceiling < most else int(most)
            row = Row(label, row.sense, right, row.coefficients, ("rnd", row.reason[1] if row.reason else ()))
        return self._derive(row)

    def assume(self, label: str, variables: Iterable[int], sense: int, right: int) -> int:
        """Add the assumption that a sum of variables is at most or at least ``right``."""
        return self._derive(Row(label, sense, right, dict.fromkeys(variables, 1), ("asm", ())))

    def either(self, label: str, low: int, low_case: int, high: int, high_case: int) -> int:
        """Derive the row that holds in both cases: ``low`` under assumption ``low_case``, ``high`` under ``high_case``."""
        stated = min((self.row(low), self.row(high)), key=lambda row: (not row.coefficients, row.right))
        reason = ("uns", ((low, low_case), (high, high_case)))
        return self._derive(Row(label, stated.sense, stated.right, stated.coefficients, reason))

    def _combined(self, label: str, terms: Terms) -> Row:
        coefficients, right, sense = defaultdict[int, Number](int), Fraction(0), EQUAL
        used = tuple((number, multiplier) for number, multiplier in terms.items() if multiplier)
        for number, multiplier in used:
            row = self.row(number)
            for variable, coefficient in row.coefficients.items():
                coefficients[variable] += multiplier * coefficient
            right += multiplier * row.right
            sense = sense or row.sense * (1 if multiplier > 0 else -1)
        left = {variable: value for variable, value in coefficients.items() if value}
        return Row(label, sense, right, left, ("lin", used))

    def _derive(self, row: Row) -> int:
        self.derived.append(row)
        return -len(self.derived)

    def used(self) -> tuple[list[int], list[int]]:
        """Return the constraints and the derived rows on which the last row rests, with it, in the order of the file."""
        used, left = {-len(self.derived)}, [-len(self.derived)] if self.derived else []
        while left:
            rule, pairs = self.row(left.pop()).reason or ("", ())
            new = {int(number) for pair in pairs for number in (pair if rule == "uns" else pair[:1])} - used
            used |= new
            left += new
        constraints, derived = range(len(self.constraints)), range(-1, -len(self.derived) - 1, -1)
        return [number for number in constraints if number in used], [number for number in derived if number in used]

    def lines(self, comments: Iterable[str], objective: int, bound: int) -> Iterable[str]:
        """Yield the lines of the certificate that ``objective`` is at least ``bound``; the last row derived says so.

        Rows on which the last one does not rest are left out.
        """
        constraints, derived = self.used()
        position = {number: line for line, number in enumerate([*constraints, *derived])}
        yield from (f"% {comment}" for comment in comments)
        yield "VER 1.0"
        yield f"VAR {len(self.variables)}"
        yield from self.variables
        yield f"INT {len(self.variables)}"
        yield " ".join(map(str, range(len(self.variables))))
        yield f"OBJ min\n1 {objective} 1"
        yield f"CON {len(constraints)} 0"
        yield from (_statement(self.constraints[number]) for number in constraints)
        yield f"RTP range {bound} inf\nSOL 0\nDER {len(derived)}"
        for number in derived:
            yield f"{_statement(self.row(number))} {{ {_because(self.row(number), position)} }} -1"


def _because(row: Row, position: Mapping[int, int]) -> str:
    rule, uses = row.reason or ("asm", ())
    if rule == "asm":
        return rule
    if rule == "uns":
        return "uns " + " ".join(f"{position[a]} {position[int(b)]}" for a, b in uses)
    return f"{rule} {len(uses)} " + " ".join(f"{position[number]} {weight}" for number, weight in uses)


def _statement(row: Row) -> str:
    pairs = " ".join(f"{variable} {value}" for variable, value in row.coefficients.items())
    return f"{row.label} {_LETTERS[row.sense]} {row.right} {len(row.coefficients)} {pairs}".rstrip()
