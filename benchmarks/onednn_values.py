"""Values of the kernels that oneDNN computes, at real sizes, against float64, with each instruction set.

Random descriptions as the compiler writes them: convolutions, transposed convolutions, products, pooling, normalisations,
softmax, concatenation. Every implementation that the library lets pass runs, and all of its result is compared; numbers are
small integers times powers of 2, so that sums of products are exact in float32. oneDNN is limited to one instruction set in
each process (``ONEDNN_MAX_CPU_ISA``).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from _common import parser
from _result_page import Page, add_portions, write_json

from tvm_sched.relax.lower.kernel_libraries.onednn.describe import (
    channels_last,
    dense,
    permuted,
    transposed_window,
    window,
)
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION
from tvm_sched_runtime.core_library import function

INSTRUCTION_SETS = {"SSE41": "sse4_1", "AVX": "avx", "AVX2": "avx2", "AVX512_CORE": "avx512bw", "DEFAULT": ""}
"""oneDNN's name of a limit, and the flag of ``/proc/cpuinfo`` that a processor has for it."""
CHANNELS = (1, 3, 4, 8, 12, 16, 20, 24, 32, 36, 40, 48, 52, 56, 64, 72, 80, 96, 100, 112, 120, 128, 144, 160, 184, 192, 200,
            240, 256, 257, 288, 320, 336, 384, 400, 480, 512, 576, 600, 640, 672, 768, 960, 1000, 1024)  # fmt: skip
MOST_MULTIPLICATIONS = 60_000_000
MOST_OF_DECODERS = 500_000_000
TOLERANCE = 1e-4
"""Of the largest number on the way to an element, 1 at least: activations have an approximation's error."""
FOUND = """
Found on 2026-11-28, on a processor with AVX2 and no more: oneDNN 3.2's `brg_conv:avx2+brgconv_strided:avx2` computes some
transposed convolutions with a stride wrong. Differences are those of finishing a result more than once, up to once for each
part of the stride: the bias is added again, and so are summands and activations that are fused, so that kernels without a
bias are wrong, too. `conv:any+brgconv_strided:avx2`, the next that oneDNN has, is right for them. No other implementation
was wrong.
"""
Array = np.ndarray[Any, Any]
Truth = Callable[[list[Array]], Array]
Windows = Callable[[Array, float], tuple[Array, Callable[[Array], Array]]]
"""From an image and what it is padded with: windows, their places first, and a function that lays out a result."""


@dataclass(frozen=True)
class Case:
    """A kernel's description, the factors of its inputs' integers, and its result in float64 from arrays of their shapes."""

    kernel: dict[str, Any]
    shapes: list[tuple[int, ...]]
    """Of the inputs as they lie in memory."""
    result: tuple[int, ...]
    factors: list[float]
    truth: Truth


@dataclass(frozen=True)
class Combined:
    """The last array, added to or multiplied by another one."""

    other: int
    name: str

    def __call__(self, arrays: list[Array]) -> Array:
        """Return the result."""
        a, b = arrays[-1], arrays[self.other]
        return a + b if self.name == "add" else a * b


class Generator:
    """Random cases; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def cases(self, count: int) -> Iterator[Case]:
        """Yield cases."""
        kinds = (
            (self.convolution, 30), (self.transposed, 30), (self.product, 20), (self.average, 5), (self.maximum, 3),
            (self.layer_normalization, 4), (self.local_response, 3), (self.softmax, 3), (self.concatenation, 2),
        )  # fmt: skip
        weights = np.array([weight for _, weight in kinds]) / sum(weight for _, weight in kinds)
        for which in self.random.choice(len(kinds), count, p=weights):
            yield kinds[which][0]()

    def pick(self, *values: Any) -> Any:
        """Return one of the values."""
        return values[self.random.integers(len(values))]

    def number(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``."""
        return int(self.random.integers(low, high + 1))

    def channels(self) -> int:
        """Return a number of channels: mostly a usual one."""
        return int(self.random.choice(CHANNELS)) if self.random.random() < 0.85 else self.number(1, 700)

    def images(self) -> tuple[int, int]:
        """Return a batch size and a number of image dimensions."""
        return self.pick(1, 1, 1, 2, 3), self.pick(1, 2, 2, 2, 2, 2, 3)

    def convolution(self) -> Case:
        """Return a convolution."""
        return self._window(transposed=False)

    def transposed(self) -> Case:
        """Return a transposed convolution: half of them as decoders have them."""
        return self._window(transposed=True, usual=self.pick(True, False))

    def _window(self, transposed: bool, usual: bool = False) -> Case:
        while True:
            most = MOST_OF_DECODERS if usual else MOST_MULTIPLICATIONS
            batch, rank = (1, 2) if usual else self.images()
            groups = 1 if usual else self.pick(1, 1, 1, 1, 2, 4, 8, 32, 0)
            inputs, outputs = self.channels(), self.channels()
            if groups == 0:
                groups = outputs = inputs
            if inputs % groups or outputs % groups:
                continue
            size = tuple(self.number(1, 34 if rank < 3 else 9) for _ in range(rank))
            kernel = (
                tuple(self.number(1, 7) for _ in range(rank)) if self.pick(0, 0, 1) else (self.number(1, 8),) * rank
            )
            strides = (self.number(1, 4),) * rank if self.pick(1, 1, 0) else tuple(self.number(1, 3) for _ in size)
            dilation = (self.pick(1, 1, 1, 1, 2, 3),) * rank
            if usual:
                step = self.number(2, 4)
                inputs, outputs = (self.pick(32, 48, 64, 96, 128, 192, 256, 320, 384, 512) for _ in range(2))
                size, kernel = (self.number(3, 16),) * 2, (self.number(step, 2 * step),) * 2
                strides, dilation = (step,) * 2, (1,) * 2
            padding = [
                self.number(0, (k - 1) * d) if self.pick(0, 1) else (k - 1) * d // 2
                for k, d in zip(kernel, dilation, strict=True)
            ]
            high = padding if self.pick(1, 1, 0) else [self.number(0, p) for p in padding]
            if usual:  # the result is `step` times as large
                padding = [(kernel[0] - step) // 2] * 2
                high = [kernel[0] - step - padding[0]] * 2
            reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
            out = tuple(
                (s - 1) * t + r - low - h if transposed else (s + low + h - r) // t + 1
                for s, t, r, low, h in zip(size, strides, reach, padding, high, strict=True)
            )
            if min(out) < 1 or any(
                not transposed and s + low + h < r for s, low, h, r in zip(size, padding, high, reach, strict=True)
            ):
                continue
            places = math.prod(size if transposed else out)
            if batch * places * math.prod(kernel) * inputs * outputs // groups > most:
                continue
            break
        describe = transposed_window if transposed else window
        geometry = describe(strides, [*padding, *high], dilation, kernel, size, out)
        stored = (
            groups,
            (inputs if transposed else outputs) // groups,
            (outputs if transposed else inputs) // groups,
            *kernel,
        )
        order = (0, 2, 1, *range(3, rank + 3)) if transposed else tuple(range(rank + 3))
        weights = {name: value[groups == 1 :] for name, value in permuted(stored, order).items()}
        image, result = (batch, *size, inputs), (batch, *out, outputs)

        def truth(arrays: list[Array]) -> Array:
            x = np.moveaxis(arrays[0], -1, 1)
            w = arrays[1] if not transposed else np.swapaxes(arrays[1], 1, 2)
            compute = transposed_of if transposed else convolution_of
            return np.moveaxis(compute(x, w, strides, dilation, padding, out), 1, -1)

        kernel_ = {"primitive": "deconvolution" if transposed else "convolution", **geometry}
        terms = math.prod(stored) // max(1, outputs)
        return self._with_post(
            kernel_, [channels_last(image), {**weights, "parameter": True}], [image, stored], result, terms, truth,
            describe_result=channels_last, bias=dense((outputs,), parameter=True),
        )  # fmt: skip

    def product(self) -> Case:
        """Return a matrix product: of rows with a parameter, or batched."""
        while True:
            rows, terms, columns = self.pick(self.number(2, 64), self.number(2, 700)), self.channels(), self.channels()
            batch = self.pick(0, 0, 0, self.number(1, 12))
            if max(1, batch) * rows * terms * columns <= MOST_MULTIPLICATIONS:
                break
        lead = (batch,) if batch else ()
        shapes = [(*lead, rows, terms), (*lead, terms, columns)]
        operands = [dense(shapes[0]), dense(shapes[1], parameter=not batch)]
        if not batch and self.pick(0, 1):  # weights as a linear layer keeps them
            operands[1] = {"dims": [terms, columns], "strides": [1, terms], "parameter": True}
            shapes[1] = (columns, terms)
        turned = shapes[1] == (columns, terms) and operands[1]["strides"] == [1, terms]
        return self._with_post(
            {"primitive": "matmul"}, operands, shapes, (*lead, rows, columns), terms,
            lambda arrays: arrays[0] @ (arrays[1].T if turned else arrays[1]),
            describe_result=dense, bias=dense((*(1,) * (len(lead) + 1), columns), parameter=True),
        )  # fmt: skip

    def _with_post(
        self, kernel: dict[str, Any], operands: list[dict[str, Any]], shapes: list[tuple[int, ...]], result: tuple[int, ...],
        terms: int, truth: Truth, *, describe_result: Callable[[tuple[int, ...]], dict[str, Any]], bias: dict[str, Any],
    ) -> Case:  # fmt: skip
        operands, shapes = list(operands), list(shapes)
        factors = [2.0 ** -round(math.log2(4 * math.sqrt(terms))), 1.0]
        steps: list[Truth] = []
        if self.random.random() < 0.7:
            kernel = {**kernel, "bias": len(operands)}
            operands.append(bias)
            shapes.append(tuple(bias["dims"]) if len(bias["dims"]) > 1 else (bias["dims"][0],))
            factors.append(0.5)
            steps.append(Combined(len(operands) - 1, "add"))
        post: list[dict[str, Any]] = []
        for name in self.pick(
            (),
            (),
            ("relu",),
            ("clip",),
            ("sigmoid",),
            ("silu",),
            ("gelu",),
            ("tanh",),
            ("hard_swish",),
            ("add",),
            ("add", "relu"),
            ("multiply", "add"),
            ("relu", "add"),
        ):
            if name in ("add", "multiply"):
                shape = result if name == "add" else (*(1,) * (len(result) - 1), result[-1])
                post.append({"name": name, "input": len(operands)})
                steps.append(Combined(len(operands), name))
                operands.append(describe_result(shape))
                shapes.append(shape)
                factors.append(0.5)
            else:
                alpha, beta = {"clip": (0.0, 6.0), "silu": (1.0, 0.0), "hard_swish": (1 / 6, 0.5)}.get(name, (0.0, 0.0))
                post.append({"name": name, "alpha": alpha, "beta": beta})
                steps.append(lambda arrays, name=name: ACTIVATIONS[name](arrays[-1]))

        def complete(arrays: list[Array]) -> Array:
            value = truth(arrays)
            for step in steps:
                value = step([*arrays, value])
            return value

        described = {**kernel, "post": post, "operands": [*operands, describe_result(result)]}
        return Case(described, shapes, result, factors, complete)

    def _pool(self) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], Windows]:
        while True:
            batch, rank = self.images()
            channels = self.channels()
            size = tuple(self.number(1, 40 if rank < 3 else 10) for _ in range(rank))
            kernel = size if self.pick(0, 0, 1) else tuple(self.number(1, 8) for _ in range(rank))
            strides = tuple(self.number(1, 4) for _ in range(rank))
            padding = [self.number(0, (k - 1) // 2) for k in kernel]
            out = tuple((s + 2 * p - k) // t + 1 for s, p, k, t in zip(size, padding, kernel, strides, strict=True))
            if min(out) > 0 and batch * channels * math.prod(out) * math.prod(kernel) < MOST_MULTIPLICATIONS // 4:
                break
        geometry = window(strides, [*padding, *padding], (1,) * rank, kernel, size, out)
        first = self.pick(False, True)
        describe = dense if first else channels_last
        image, result = (
            ((batch, channels, *size), (batch, channels, *out))
            if first
            else ((batch, *size, channels), (batch, *out, channels))
        )

        def windows(x: Array, filled: float) -> tuple[Array, Callable[[Array], Array]]:
            x = x if first else np.moveaxis(x, -1, 1)
            high = geometry["padding_high"]
            padded = np.pad(x, [(0, 0), (0, 0), *zip(padding, high, strict=True)], constant_values=filled)
            places = product(*map(range, kernel))
            found = np.stack([shifted(padded, place, strides, (1,) * rank, out) for place in places])
            return found, lambda y: y if first else np.moveaxis(y, 1, -1)

        described = {"kernel": list(kernel), **geometry, "operands": [describe(image), describe(result)]}
        return described, image, result, windows

    def average(self) -> Case:
        """Return average pooling."""
        kernel, image, result, windows = self._pool()
        included = self.pick(True, False)
        algorithm = "average_with_padding" if included else "average"

        def truth(arrays: list[Array]) -> Array:
            values, back = windows(arrays[0], 0.0)
            count, _ = windows(np.ones_like(arrays[0]), 0.0)
            return back(values.sum(0) / (len(values) if included else count.sum(0)))

        return Case({"primitive": "pooling", "algorithm": algorithm, **kernel}, [image], result, [0.5], truth)

    def maximum(self) -> Case:
        """Return max pooling, our own kernel."""
        kernel, image, result, windows = self._pool()

        def truth(arrays: list[Array]) -> Array:
            values, back = windows(arrays[0], -np.inf)
            return back(values.max(0))

        return Case({"primitive": "max_pool", **kernel}, [image], result, [0.5], truth)

    def layer_normalization(self) -> Case:
        """Return layer normalisation."""
        rows, columns = self.number(1, 300), self.channels()
        shape = dense((rows, columns))
        kernel = {"primitive": "layer_normalization", "numbers": [1e-5]}

        def truth(arrays: list[Array]) -> Array:
            x, scale, shift = arrays
            return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * scale + shift

        operands = [shape, dense((columns,)), dense((columns,)), shape]
        shapes: list[tuple[int, ...]] = [(rows, columns), (columns,), (columns,)]
        return Case({**kernel, "operands": operands}, shapes, (rows, columns), [0.5, 0.5, 0.5], truth)

    def local_response(self) -> Case:
        """Return local response normalisation."""
        image = (self.pick(1, 2), self.number(1, 20), self.number(1, 20), self.channels())
        size, alpha, beta, k = self.pick(3, 5, 7), self.pick(1e-4, 1e-2), self.pick(0.75, 0.5), self.pick(1.0, 2.0)

        def truth(arrays: list[Array]) -> Array:
            squares = np.pad(arrays[0] ** 2, [(0, 0)] * 3 + [(size // 2, size // 2)])
            sums = sum(squares[..., s : s + image[-1]] for s in range(size))
            return arrays[0] * (k + alpha / size * sums) ** -beta

        operands = [channels_last(image), channels_last(image)]
        kernel = {"primitive": "local_response_normalization", "numbers": [size, alpha, beta, k], "operands": operands}
        return Case(kernel, [image], image, [4.0], truth)

    def softmax(self) -> Case:
        """Return softmax, our own kernel."""
        shape = (*(self.number(1, 60) for _ in range(self.number(1, 3))), self.channels())
        axis, logarithm = self.number(0, len(shape) - 1), self.pick(False, True)

        def truth(arrays: list[Array]) -> Array:
            powers = np.exp(arrays[0] - arrays[0].max(axis, keepdims=True))
            whole = powers.sum(axis, keepdims=True)
            return np.log(powers / whole) if logarithm else powers / whole

        operands = [dense(shape), dense(shape)]
        algorithm = "log" if logarithm else "accurate"
        kernel = {"primitive": "softmax", "algorithm": algorithm, "axis": axis, "operands": operands}
        return Case(kernel, [shape], shape, [0.5], truth)

    def concatenation(self) -> Case:
        """Return concatenation, our own kernel."""
        rows = self.number(1, 300)
        shapes: list[tuple[int, ...]] = [(rows, self.channels()) for _ in range(self.number(2, 6))]
        result = (rows, sum(columns for _, columns in shapes))
        operands = [*map(dense, shapes), dense(result)]
        return Case(
            {"primitive": "concatenation", "operands": operands},
            shapes,
            result,
            [1.0] * len(shapes),
            lambda arrays: np.concatenate(arrays, 1),
        )


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, 0, 6),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2,
    "tanh": np.tanh,
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}


def shifted(padded: Array, place: tuple[int, ...], strides: Any, dilation: Any, out: Any) -> Array:
    """Return the elements of (N, C, ...) that a place of the window meets."""
    cut = tuple(
        slice(p * d, p * d + t * (o - 1) + 1, t) for p, d, t, o in zip(place, dilation, strides, out, strict=True)
    )
    return padded[(slice(None), slice(None), *cut)]


def convolution_of(x: Array, w: Array, strides: Any, dilation: Any, low: Any, out: Any) -> Array:
    """Return a convolution of (N, C, ...) by (groups, outputs, inputs, ...) in the arrays' type."""
    groups, outputs, inputs = w.shape[:3]
    reach = [(o - 1) * t + (k - 1) * d + 1 for o, t, k, d in zip(out, strides, w.shape[3:], dilation, strict=True)]
    high = [max(0, r - s - p) for r, s, p in zip(reach, x.shape[2:], low, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)])
    y = np.zeros((x.shape[0], groups, outputs, math.prod(out)))
    for place in product(*map(range, w.shape[3:])):
        met = shifted(padded, place, strides, dilation, out).reshape(x.shape[0], groups, inputs, -1)
        y += w[(slice(None),) * 3 + place] @ met
    return y.reshape(x.shape[0], groups * outputs, *out)


def transposed_of(x: Array, w: Array, strides: Any, dilation: Any, low: Any, out: Any) -> Array:
    """Return a transposed convolution of (N, C, ...) by (groups, outputs, inputs, ...)."""
    groups, outputs, inputs = w.shape[:3]
    size = x.shape[2:]
    whole = [(s - 1) * t + (k - 1) * d + 1 for s, t, k, d in zip(size, strides, w.shape[3:], dilation, strict=True)]
    y = np.zeros((x.shape[0], groups * outputs, *(max(a, p + o) for a, p, o in zip(whole, low, out, strict=True))))
    flat = x.reshape(x.shape[0], groups, inputs, -1)
    for place in product(*map(range, w.shape[3:])):
        spread = (w[(slice(None),) * 3 + place] @ flat).reshape(x.shape[0], groups * outputs, *size)
        shifted(y, place, strides, dilation, size)[...] += spread
    return y[(slice(None), slice(None), *(slice(p, p + o) for p, o in zip(low, out, strict=True)))]


def compare(case: Case, seed: int) -> dict[str, float]:
    """Run every implementation that the library lets pass; the largest error of each, as a multiple of what is allowed."""
    random = np.random.default_rng(seed)
    arrays = [
        (random.choice([-3, -2, -1, 1, 2, 3], shape) * factor).astype("float32")
        for shape, factor in zip(case.shapes, case.factors, strict=True)
    ]
    document: dict[str, Any] = {"version": VERSION, "kernels": {"kernel": case.kernel}}
    names = [str(name) for name in function("tvm_sched.onednn.implementations")(json.dumps(document))]
    if not names:
        return {}
    wanted = case.truth([array.astype("float64") for array in arrays])
    allowed = TOLERANCE * np.maximum(1, np.abs(wanted))
    errors: dict[str, float] = {}
    for name in names:
        document["kernels"] = {"kernel": {**case.kernel, "implementation": name}}
        result = tvm.runtime.tensor(np.full(case.result, np.nan, "float32"))
        module = function("tvm_sched.onednn.make_module")(json.dumps(document))
        module["kernel"](*map(tvm.runtime.tensor, arrays), result)
        error = np.abs(result.numpy().reshape(wanted.shape) - wanted) / allowed
        errors[name] = float(np.nan_to_num(error, nan=np.inf).max())
    return errors


def work(count: int, seed: int) -> None:
    """Print what the cases gave with this process's instruction set, as JSON."""
    function("tvm_sched.why_not_onednn")()  # loads the library
    ran: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    worst = 0.0
    for number, case in enumerate(Generator(seed).cases(count)):
        kinds[case.kernel["primitive"]] += 1
        for name, error in compare(case, seed + number).items():
            ran[name] += 1
            worst = max(worst, error) if error <= 1 else worst
            if error > 1:
                wrong.append({"implementation": name, "error": error, "kernel": case.kernel})
    refused = [str(sentence) for sentence in function("tvm_sched.onednn_found_wrong")()]
    print(json.dumps({"ran": ran, "kinds": kinds, "wrong": wrong, "refused": refused, "worst": worst}))


def instruction_sets() -> list[str]:
    """Return the limits of oneDNN that make a difference on this machine."""
    flags = next(
        (line.split() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), []
    )
    return [name for name, flag in INSTRUCTION_SETS.items() if not flag or flag in flags]


def sweep(limit: str, count: int, seed: int = 1) -> dict[str, Any]:
    """Compare cases in a process of its own, with a cache of its own: on one core, without a limit on all."""
    with tempfile.TemporaryDirectory() as cache:
        threads = {} if limit == "DEFAULT" else {"TVM_SCHED_NUM_THREADS": "1"}
        variables = {"ONEDNN_MAX_CPU_ISA": limit, "TVM_SCHED_CACHE": cache, **threads}
        command = [sys.executable, __file__, "--work", str(count), "--seed", str(seed)]
        environment = {**os.environ, **variables, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run as told on the command line."""
    arguments = parser(__doc__)
    arguments.add_argument("--cases", type=int, default=2000, help="descriptions for each instruction set")
    arguments.add_argument("--seed", type=int, default=1, help="of the random numbers")
    add_portions(arguments, "limits")
    arguments.add_argument("--work", type=int, metavar="COUNT", help="compare in this process, and print JSON")
    options = arguments.parse_args()
    if options.work is not None:
        work(options.work, options.seed)
        return
    count = 60 if options.quick else options.cases
    found = {name: each for file in options.earlier for name, each in json.loads(file.read_text()).items()}
    for limit in instruction_sets():
        if options.only in limit:
            found[f"{limit}, seed {options.seed}"] = sweep(limit, count, options.seed)
    write_json(options.json, found)
    page = Page("Values of oneDNN's kernels", options.markdown, notes=FOUND)
    page.text((__doc__ or "").split("\n\n", 1)[1].strip())
    page.text(
        '"Refused" counts the implementations, one for each description, whose values the library found wrong and left',
        'out. "Wrong" counts those that it let pass and whose whole result was not right.',
    )
    rows = [
        (
            limit,
            sum(each["kinds"].values()),
            sum(each["ran"].values()),
            len(each["refused"]),
            len(each["wrong"]),
            f"{TOLERANCE * each['worst']:.1e}",
        )
        for limit, each in found.items()
    ]
    page.table(
        ("limit", "descriptions", "implementations run", "refused", "wrong", "largest error of the right ones"), rows
    )
    for limit, each in found.items():
        names = Counter(sentence.split(" ", 1)[0] for sentence in each["refused"])
        if names:
            page.text(f"## Refused with {limit}")
            page.table(("implementation", "descriptions"), names.most_common())
            page.text("For example:", "", *(f"- {sentence}" for sentence in each["refused"][:3]))
    page.write()


if __name__ == "__main__":
    main()
