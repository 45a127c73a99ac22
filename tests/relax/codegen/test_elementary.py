"""Elementary functions of float32: errors over all exponents, special values, and that no call of libm remains."""

import numpy as np
import pytest
import tvm
from scipy import special
from tvm import te, tirx

from tvm_sched.relax.codegen.cpu.elementary import MOST_ULP
from tvm_sched.relax.codegen.cpu.kernels import compile_kernels
from tvm_sched.relax.toolchain.compile_target import CompileTarget

REFERENCES = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x), "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "tanh": np.tanh, "sigmoid": special.expit, "erf": special.erf, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "atan": np.arctan, "asin": np.arcsin,
    "acos": np.arccos, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, 1e-38, -1e-38, 3.4028235e38, -3.4028235e38, 0.5, 2]
NEAR_QUARTERS = [np.ldexp(np.float32(16367173), 72), 16777216.0, 3e9, 2.0**127]
"""Angles whose rest after quarters of a turn has few digits left (the first has the fewest of all), and large ones."""
TARGETS = {"this machine": CompileTarget().host, "no FMA": tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})}
COUNT = 1 << 16


def samples():
    """Numbers of all exponents and both signs, dense ones around 0, and special ones; an odd number of them."""
    rng = np.random.default_rng(0)
    step = (1 << 32) // COUNT
    bits = np.arange(COUNT, dtype=np.uint64) * step + rng.integers(0, step, COUNT).astype(np.uint64)
    parts = [
        bits.astype(np.uint32).view(np.float32),
        np.linspace(-105, 105, 20001),
        np.linspace(-1.5, 1.5, 20001),
        SPECIAL,
        NEAR_QUARTERS,
    ]
    return np.concatenate(parts).astype(np.float32)


def ulp(found, wanted):
    """Error of float32 numbers in units of the last place; infinite where one is NaN and the other is not."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
        place = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float32).max)).astype(np.float64)
        error = np.abs(found.astype(np.float64) - wanted) / place
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    # One step beyond the largest number is infinity.
    close = np.isinf(found) & (np.abs(wanted) > 3.4028232e38) & (np.sign(found) == np.sign(wanted))
    return np.where(same, 0, np.where(close, 1, np.where(np.isfinite(error), error, np.inf)))


def unary(name, count, dtype="float32"):
    x = te.placeholder((count,), dtype)
    return te.create_prim_func([x, te.compute((count,), lambda i: getattr(tirx, name)(x[i]))])


def apply(functions, target, arguments):
    module = compile_kernels(functions, target)
    results = {}
    for name in functions:
        given = arguments[name]
        results[name] = tvm.runtime.empty(given[0].shape, str(given[0].dtype))
        module[name](*(tvm.runtime.tensor(value) for value in given), results[name])
    return {name: value.numpy() for name, value in results.items()}, module


@pytest.mark.parametrize("target", TARGETS)
def test_errors(target):
    arguments = {name: (samples(),) for name in REFERENCES}
    found, module = apply(
        {name: unary(name, len(arguments[name][0])) for name in REFERENCES}, TARGETS[target], arguments
    )
    worst = {}
    for name, reference in REFERENCES.items():
        with np.errstate(all="ignore"):
            wanted = reference(arguments[name][0].astype(np.float64))
        worst[name] = ulp(found[name], wanted).max()
        zeros = (wanted == 0) & (found[name] == 0)
        assert np.array_equal(np.signbit(wanted[zeros]), np.signbit(found[name][zeros])), name
    assert {name: error for name, error in worst.items() if error > MOST_ULP[name]} == {}
    source = module.inspect_source("ll")
    assert not [name for name in REFERENCES if f"@{name}f(" in source or f"@llvm.{name}." in source]


@pytest.mark.parametrize("target", TARGETS)
def test_power(target):
    rng = np.random.default_rng(1)
    bases, exponents = (a.ravel() for a in np.meshgrid(SPECIAL, [*SPECIAL, 3, -3, 0.5, -0.5, 2.5, 1e9, 16777217]))
    x = np.concatenate([bases, np.exp(rng.uniform(-87, 88, 20000)), -np.exp(rng.uniform(-5, 5, 1000))]).astype(
        np.float32
    )
    y = np.concatenate([exponents, rng.uniform(-3, 3, 20000), rng.integers(-9, 9, 1000)]).astype(np.float32)
    a, b = te.placeholder(x.shape, "float32"), te.placeholder(x.shape, "float32")
    function = te.create_prim_func([a, b, te.compute(x.shape, lambda i: tirx.power(a[i], b[i]))])
    found, _ = apply({"power": function}, TARGETS[target], {"power": (x, y)})
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulp(found["power"], wanted).max() <= MOST_ULP["pow"]


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, -1, -2, 0.5, -0.5, 0, 1.7, np.inf])
def test_constant_power(exponent):
    x = samples()
    a = te.placeholder(x.shape, "float32")
    power = te.compute(x.shape, lambda i: tirx.power(a[i], tirx.FloatImm("float32", float(exponent))))
    found, _ = apply({"power": te.create_prim_func([a, power])}, CompileTarget().host, {"power": (x,)})
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), np.full(x.shape, np.float32(exponent), np.float64))
        denormal = np.abs(wanted) < 2.0**-126  # of a quotient whose denominator is infinite
    assert ulp(found["power"], wanted)[~denormal].max() <= 4


def test_nothing_is_read_behind_a_condition():
    """A function under a condition is computed everywhere, but reads only where the condition holds."""
    x = te.placeholder((10,), "float32")
    padded = te.compute((2**20,), lambda i: tirx.if_then_else(i < 10, tirx.exp(x[i]), tirx.FloatImm("float32", 7)))
    values = np.linspace(-3, 3, 10).astype(np.float32)
    result = tvm.runtime.empty((2**20,), "float32")
    module = compile_kernels({"pad": te.create_prim_func([x, padded])}, CompileTarget().host)
    module["pad"](tvm.runtime.tensor(values), result)
    wanted = np.full(2**20, 7, np.float32)
    wanted[:10] = np.exp(values)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6)


def test_functions_within_each_other_compile_fast_enough_to_be_compiled_at_all():
    """Bound by `Let`, five of them took the memory of the machine."""
    x = te.placeholder((33,), "float32")

    def nested(i):
        value = x[i]
        for name in ("exp", "log1p", "tanh", "sinh", "erf", "sigmoid"):
            value = getattr(tirx, name)(value)
        return value

    values = np.linspace(-2, 2, 33).astype(np.float32)
    found, _ = apply({"f": te.create_prim_func([x, te.compute((33,), nested)])}, CompileTarget().host, {"f": (values,)})
    wanted = special.expit(special.erf(np.sinh(np.tanh(np.log1p(np.exp(values.astype(np.float64)))))))
    np.testing.assert_allclose(found["f"], wanted, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-14)])
def test_other_types(dtype, tolerance):
    values = np.linspace(-3, 3, 50).astype(dtype)
    found, _ = apply({"tanh": unary("tanh", 50, dtype)}, CompileTarget().host, {"tanh": (values,)})
    np.testing.assert_allclose(found["tanh"], np.tanh(values), rtol=tolerance)
