"""The arguments of the benchmarks, and the halves of their instances."""

import argparse
from hashlib import sha256
from pathlib import Path

HALVES = ("tuned on", "held out")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the arguments that benchmarks share: ``--json``, ``--markdown`` and ``--quick``."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    result.add_argument("--markdown", type=Path, metavar="FILE", help="write a page of results there")
    result.add_argument("--quick", action="store_true", help="minutes instead of hours: fewer and smaller cases")
    return result


def half(name: str) -> str:
    """Return the half of an instance: methods are tuned on those whose name has an even SHA-256."""
    return HALVES[sha256(name.encode()).digest()[-1] % 2]
