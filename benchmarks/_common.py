"""The arguments of the benchmarks."""

import argparse
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the arguments that benchmarks share: ``--json``, ``--markdown`` and ``--quick``."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    result.add_argument("--markdown", type=Path, metavar="FILE", help="write a page of results there")
    result.add_argument("--quick", action="store_true", help="minutes instead of hours: fewer and smaller cases")
    return result
