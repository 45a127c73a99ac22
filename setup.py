"""``tvm-sched``, with CMake's libraries in it or beside ``tvm-sched-runtime``; everything else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "distributions"))
import build_tools

setup(distclass=build_tools.Split if os.environ.get(build_tools.SPLIT) == "1" else build_tools.Whole)
