"""The checker is short enough to be read: lines of code without blank lines, comments and docstrings."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

import tvm_sched_check

FOLDER = Path(tvm_sched_check.__file__).parent
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
LIMITS = {
    650: ("document", "replay", "derivation", "placement_bound"),
    130: ("verdict", "command", "__main__"),
    155: ("ranges",),
    75: ("joined",),
    80: ("together",),
    100: ("assignment",),
    105: ("ports",),
    115: ("enumeration",),
    140: ("bisection", "eigenvalue"),
    220: ("alternative_bound", "groups"),
}


def lines_of_code(text):
    """The number of lines with code."""
    tree = ast.parse(text)
    alone = [n for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    strings = {line for n in alone if isinstance(n.value.value, str) for line in range(n.lineno, n.end_lineno + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)} - strings)


def test_lines_are_counted_as_by_hand():
    lines = ('"""Module."""', "", "# comment", "x = 1  # with a comment", "def f():", '    """Doc', '    string."""')
    text = "\n".join((*lines, "    return [", "        x", "    ]", ""))
    assert lines_of_code(text) == 5


@pytest.mark.parametrize("most", LIMITS)
def test_parts_are_as_short_as_the_page_says(most):
    """`docs/formats/evidence.md` says so."""
    assert sum(lines_of_code((FOLDER / f"{name}.py").read_text()) for name in LIMITS[most]) < most
