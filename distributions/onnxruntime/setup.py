"""``tvm-sched-onnxruntime``: a part of the tree two folders above; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import build_tools

setup(distclass=build_tools.OnnxRuntime)
