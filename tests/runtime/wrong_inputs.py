"""Values that are no input of a model with one float32[2, 3], and what each entry says to them.

Run as a program, since what it looks for would end the process: ``wrong_inputs.py ENTRY FOLDER`` prints a JSON object
with the kind and the text of each error; of a value that is taken, the kind is ``"taken"``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import date
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

ONE = np.ones((2, 3), "float32")
RIGHT = ("float32", "torch with gradient")
NUMPY = (
    *(
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("longdouble", "complex64", "complex128", "clongdouble"),
)
TORCH = ("complex64", "complex128", "bfloat16", "float64", "float8_e4m3fn", "bool", "uint16")


def values(with_torch: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and functions that make a value; only those named in `RIGHT` are inputs."""
    for name in NUMPY:
        yield name, lambda name=name: ONE.astype(name)
    for name in sorted(vars(ml_dtypes)):
        if isinstance(found := getattr(ml_dtypes, name), type) and issubclass(found, np.generic):
            yield f"ml_dtypes {name}", lambda found=found: ONE.astype(found)
    for dtype in ("S4", "U4", "V4", "M8[s]", "m8[us]", [("a", "f4"), ("b", "i8")]):
        yield f"numpy {dtype}", lambda dtype=dtype: np.zeros((2, 3), dtype)
    for swapped in ("complex64", "float64", "int16"):
        yield f"swapped {swapped}", lambda swapped=swapped: ONE.astype(np.dtype(swapped).newbyteorder())
    yield "objects", lambda: ONE.astype(object)
    for shape in ((), (0,), (0, 3), (2, 0), (3, 2), (2, 3, 1), (1, 2, 3), (6,), (1,) * 9):
        yield f"shape {shape}", lambda shape=shape: np.ones(shape, "float32")
    yield "huge", lambda: np.lib.stride_tricks.as_strided(ONE, (2**40, 3), (0, 4))
    yield "huge, read-only", lambda: np.broadcast_to(np.float32(1), (2**40, 2**10))
    plain = (
        None, "x", b"x", 1, 1.5, 1j, True, [], [1, 2], [[1, [2]], 3], {}, {"x": 1}, {1}, date(2026, 1, 1), object(),
        int, abs,
    )  # fmt: skip
    for value in plain:
        yield f"{type(value).__name__} {value!r:.20}", lambda value=value: value
    if with_torch and find_spec("torch"):
        import torch

        for name in TORCH:
            yield f"torch {name}", lambda name=name: torch.ones(2, 3).to(getattr(torch, name))
        yield "torch with gradient", lambda: torch.ones(2, 3, requires_grad=True)
        yield "torch sparse", lambda: torch.eye(3)[:2].to_sparse()
        yield "torch meta", lambda: torch.ones(2, 3, device="meta")
        yield "torch conjugate", lambda: torch.ones(2, 3).to(torch.complex64).conj()


def entry(name: str, folder: str) -> Callable[[Any], Any]:
    """Return the function that takes a value."""
    if name == "module":
        from runtime_plans import PlanBuilder

        builder = PlanBuilder()
        x, out = builder.argument("x", [2, 3]), builder.output([2, 3])
        builder.copy(x, out)
        return builder.module().run
    if name == "parameter":
        from runtime_plans import PlanBuilder

        builder = PlanBuilder()
        builder.copy(builder.parameter("x", [2, 3]), builder.output([2, 3]))
        module = builder.module()
        return lambda value: module.set_parameter("x", value)
    if name == "loaded":
        from tvm_sched_runtime.runtime import load

        return load(f"{folder}/model.so").run
    if name == "pipeline":
        from tvm_sched_runtime.pipeline import load as load_pipeline

        pipeline = load_pipeline(f"{folder}/model.pipeline")
        return lambda value: pipeline.run([(value,)])[0].value()
    import tvm
    import tvm_ffi

    from tvm_sched.relax import compile

    compiled = compile(f"{folder}/model.onnx", "cpu1", "single")
    if name == "compiled":
        return compiled.run
    machine = tvm.relax.VirtualMachine(compiled.executable, tvm.cpu())["main"]
    return lambda value: machine(tvm_ffi.from_dlpack(value))


def main(name: str, folder: str) -> None:
    """Print what the entry says to each value."""
    run, said = entry(name, folder), {}
    for what, make in values(name in ("loaded", "compiled")):
        try:
            value = make()
        except TypeError:  # a type that these versions cannot make
            continue
        try:
            run(value)
            said[what] = ["taken", ""]
        except Exception as error:
            said[what] = [type(error).__name__, str(error)]
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
