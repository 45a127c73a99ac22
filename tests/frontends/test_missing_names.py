"""The command that lists names of TVM which a checkout does not have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "upstream"))
from missing_names import Sources, used


def test_names_are_found_through_imports(tmp_path):
    root = tmp_path / "tvm"
    (root / "relax").mkdir(parents=True)
    (root / "__init__.py").write_text("from . import relax\nfrom .ir import Op as Operator\n")
    (root / "ir.py").write_text("class Op: ...\n")
    (root / "relax" / "__init__.py").write_text("from .expr import *\n")
    (root / "relax" / "expr.py").write_text("def call(): ...\nshape = None\n")
    sources = Sources(root)
    there = ["tvm.Operator", "tvm.ir.Op.get", "tvm.relax.call", "tvm.relax.expr.shape", "tvm.relax.expr"]
    assert [name for name in there if not sources.has(name)] == []
    assert not any(map(sources.has, ["tvm.Op", "tvm.relax.Var", "tvm.sym", "tvm.relax.expr.dtype"]))


def test_names_of_a_file(tmp_path):
    file = tmp_path / "ours.py"
    file.write_text("import tvm\nfrom tvm import relax as r\nx = r.op.add(tvm.ir.Op, 1)\ny = x.ty.shape\n")
    assert used(file) == {"tvm", "tvm.relax", "tvm.relax.op.add", "tvm.relax.op", "tvm.ir.Op", "tvm.ir"}
