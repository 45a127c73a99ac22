"""A checker of VIPR certificates (version 1.0) for tests: it knows the format's text and none of our code.

It follows the description of the format by K. K. H. Cheung, A. Gleixner, D. E. Steffy (2017) for files without solutions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

SENSES = {"L": -1, "E": 0, "G": 1}


class Row(NamedTuple):
    coefficients: dict[int, Fraction]
    sense: int
    right: Fraction
    assumptions: frozenset[int] = frozenset()

    @property
    def false(self) -> bool:
        return not self.coefficients and (self.right > 0 if self.sense >= 0 else self.right < 0)

    def implies(self, other: Row) -> bool:
        if self.false:
            return True
        if self.coefficients != other.coefficients:
            return False
        if other.sense == 0:
            return self.sense == 0 and self.right == other.right
        return self.sense in (0, other.sense) and other.sense * (self.right - other.right) >= 0


class Wrong(Exception):
    """The certificate proves nothing."""


def proved(text: str) -> Fraction:
    """Return the lower bound that a certificate proves; raise `Wrong` if a derivation does not follow."""
    words = iter(" ".join(line for line in text.splitlines() if not line.startswith("%")).split())
    expect(words, "VER", "1.0", "VAR")
    variables = [next(words) for _ in range(int(next(words)))]
    expect(words, "INT")
    integer = {int(next(words)) for _ in range(int(next(words)))}
    expect(words, "OBJ", "min")
    objective = pairs(words)
    expect(words, "CON")
    rows, _ = [int(next(words)), next(words)], None
    constraints = [statement(words)[1] for _ in range(rows[0])]
    expect(words, "RTP", "range")
    bound = Fraction(next(words))
    expect(words, "inf", "SOL", "0", "DER")
    known = constraints
    for _ in range(int(next(words))):
        label, stated = statement(words)
        expect(words, "{")
        known.append(derived(label, stated, words, known, integer))
        expect(words, "}", "-1")
    if next(words, None) is not None or len(set(variables)) < len(variables):
        raise Wrong("something follows the derivations, or two variables have one name")
    if known[-1].assumptions or not known[-1].implies(Row(objective, 1, bound)):
        raise Wrong(f"the last row does not prove the bound {bound}")
    return bound


def derived(label: str, stated: Row, words: Iterator[str], known: list[Row], integer: set[int]) -> Row:
    """Return a stated row with the assumptions that it needs."""
    rule = next(words)
    if rule == "asm":
        return stated._replace(assumptions=frozenset({len(known)}))
    if rule == "uns":
        (low, low_case), (high, high_case) = ((int(next(words)), int(next(words))) for _ in range(2))
        cases = known[low_case], known[high_case]
        whole = all(v in integer and c.denominator == 1 for v, c in cases[0].coefficients.items())
        apart = cases[0].sense == -1 and cases[1].sense == 1 and cases[0].right + 1 == cases[1].right
        if not (whole and apart and cases[0].coefficients == cases[1].coefficients):
            raise Wrong(f"{label}: the two cases are not all cases")
        if not (known[low].implies(stated) and known[high].implies(stated)):
            raise Wrong(f"{label}: does not hold in both cases")
        left = (known[low].assumptions - {low_case}) | (known[high].assumptions - {high_case})
        return stated._replace(assumptions=left)
    total = combined(label, {int(next(words)): Fraction(next(words)) for _ in range(int(next(words)))}, known)
    if rule == "rnd":
        if any(v in integer and c.denominator != 1 for v, c in total.coefficients.items()) or total.sense != 1:
            raise Wrong(f"{label}: cannot be rounded")
        if not set(total.coefficients) <= integer:
            raise Wrong(f"{label}: has a variable that is not an integer")
        total = total._replace(right=Fraction(math.ceil(total.right)))
    elif rule != "lin":
        raise Wrong(f"{label}: unknown rule {rule}")
    if not total.implies(stated):
        raise Wrong(f"{label}: states more than follows")
    return stated._replace(assumptions=total.assumptions)


def combined(label: str, weights: dict[int, Fraction], known: list[Row]) -> Row:
    coefficients, right, senses, assumptions = (
        defaultdict[int, Fraction](Fraction),
        Fraction(0),
        set(),
        frozenset[int](),
    )
    for number, weight in weights.items():
        row = known[number]
        for variable, value in row.coefficients.items():
            coefficients[variable] += weight * value
        right += weight * row.right
        senses |= {row.sense * (1 if weight > 0 else -1)} - {0}
        assumptions |= row.assumptions
    if len(senses) > 1:
        raise Wrong(f"{label}: adds inequalities of both senses")
    left = {variable: value for variable, value in coefficients.items() if value}
    return Row(left, senses.pop() if senses else 0, right, assumptions)


def statement(words: Iterator[str]) -> tuple[str, Row]:
    label, sense, right = next(words), SENSES[next(words)], Fraction(next(words))
    return label, Row(pairs(words), sense, right)


def pairs(words: Iterator[str]) -> dict[int, Fraction]:
    return {int(next(words)): Fraction(next(words)) for _ in range(int(next(words)))}


def expect(words: Iterator[str], *expected: str) -> None:
    for word in expected:
        if (read := next(words, None)) != word:
            raise Wrong(f"{word} is expected; read {read}")
