"""A loaded artifact as clients see it: names, types, and the batches that it takes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import ScheduledModule

from .datatypes import DATATYPES, Array, TensorType
from .failures import RequestError

Shapes = tuple[tuple[int, ...], ...]
NOT_JOINED = "its batch is neither open nor compiled for several sizes (compile --shape n={1,4,16})"
"""Why requests of a model run alone."""
_ROWS = 64
"""Most rows of a batch of requests where the model's open batch has no upper limit."""


@dataclass(frozen=True)
class ServedModel:
    """A version of a model in memory."""

    name: str
    version: str
    module: ScheduledModule
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    shapes: frozenset[Shapes]
    """The shapes of all inputs for each plan."""
    any_size: bool = False
    """Whether the module has a plan template, which takes other shapes, too."""
    open_batch: int = 0
    """Most rows of a batch along the open first dimension; 0 if there is none."""
    _recording: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        module: ScheduledModule,
        file: Path,
        name: str,
        version: str,
        *,
        instances: int = 1,
        watchdog: float | None = None,
    ) -> ServedModel:
        """Prepare an artifact that was loaded from ``file``.

        Raises
        ------
        InputError
            It keeps states between runs, or has a data type that the protocol lacks.
        """
        if module.states():
            raise InputError(f"{file}: keeps states between runs, so that requests would change each other's values")
        if module.info().get("tail"):
            raise InputError(
                f"{file}: TVM's virtual machine runs a part of it (`inspect`), which the server does not offer"
            )
        module.configure(instances=instances, watchdog=watchdog)
        inputs, outputs = (tuple(map(_tensor_type, tensors)) for tensors in module.signature())
        for tensor in (*inputs, *outputs):
            if tensor.dtype not in DATATYPES:
                raise InputError(f"{file}: {tensor.name!r} is {tensor.dtype}, which the protocol has no name for")
        plans = module.plans()
        shapes = frozenset(tuple(tuple(argument["shape"]) for argument in plan["arguments"]) for plan in plans)
        template = module.template
        batch = open_batch(template) if template else 0
        return cls(name, version, module, inputs, outputs, shapes, template is not None, batch)

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sizes of the first dimension, if the plans differ in nothing else; () if rows are not filled up to one of them."""
        if self.any_size:
            return ()
        sizes = set()
        for shapes in self.shapes:
            if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) != 1:
                return ()
            sizes.add(shapes[0][0])
        rests = {tuple(shape[1:] for shape in shapes) for shapes in self.shapes}
        batched = all(tensor.shape and tensor.shape[0] == -1 and -1 not in tensor.shape[1:] for tensor in self.outputs)
        return tuple(sorted(sizes)) if len(rests) == 1 and len(sizes) > 1 and batched else ()

    @cached_property
    def largest_batch(self) -> int:
        """Most rows of several requests together; 0 if requests cannot be joined."""
        return max((self.open_batch, *self.batch_sizes))

    def check(self, arrays: Sequence[Array], batching: bool) -> int:
        """Return the rows of a request, 0 if it cannot be joined with others.

        Raises
        ------
        RequestError
            The model does not take inputs of these shapes.
        """
        if self.any_size:
            try:
                self.module.check_inputs(*arrays)
            except InputError as error:
                raise RequestError(str(error)) from None
            return len(arrays[0]) if batching else 0
        if batching and self.batch_sizes:
            rows = {int(array.shape[0]) for array in arrays}
            if len(rows) == 1 and 0 < min(rows) <= self.batch_sizes[-1]:
                return rows.pop()
            raise RequestError(
                f"the inputs have {sorted(rows)} rows; all need the same number, from 1 to {self.batch_sizes[-1]}"
            )
        shapes = tuple(tuple(array.shape) for array in arrays)
        if shapes not in self.shapes:
            known = "; or ".join(str([list(shape) for shape in each]) for each in sorted(self.shapes))
            raise RequestError(
                f"no plan of the model takes the shapes {[list(s) for s in shapes]}; allowed are {known}"
            )
        return 0

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once."""
        return self.module.run(*arrays)

    def run_recorded(self, arrays: Sequence[Array]) -> tuple[list[Array], dict[str, Any] | None]:
        """Run the model once; return the executor's timeline, too, if `record_timelines` was called.

        Runs go one after the other, because the executor keeps the timeline of the last one.
        """
        with self._recording:
            outputs = self.run(arrays)
            try:
                return outputs, self.module.timeline()
            except ExecutionError:
                return outputs, None

    def record_timelines(self, wanted: bool) -> None:
        """Let the executor record the timelines of further runs, or no more."""
        self.module.configure(trace=wanted)

    def join(self, requests: Sequence[Sequence[Array]], rows: int) -> list[Array]:
        """Put requests' rows into one batch, of the next size that there is; what remains of it is zero."""
        size = next((size for size in self.batch_sizes if size >= rows), rows)
        if len(requests) == 1 and size == rows:
            return list(requests[0])
        joined = []
        for parts in zip(*requests, strict=True):
            batch = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
            np.concatenate(parts, out=batch[:rows])
            batch[rows:] = 0
            joined.append(batch)
        return joined


def _tensor_type(tensor: Mapping[str, Any]) -> TensorType:
    return TensorType(str(tensor["name"]), str(tensor["dtype"]), tuple(tensor["shape"]))


def open_batch(template: Mapping[str, Any]) -> int:
    """Return the most rows of requests that are joined; 0 unless an open dimension is the first of all tensors only."""
    tensors = [*template["arguments"], *template["outputs"]]
    if not template["arguments"] or not all(tensor["shape"] for tensor in tensors):
        return 0
    first = template["arguments"][0]["shape"][0]
    symbol = next((each for each in template["symbols"] if each["name"] == first), None)
    # No other size may change with the rows, nor be needed for them.
    others = [*(tensor["shape"][1:] for tensor in tensors), template["conditions"]]
    if symbol is None or any(tensor["shape"][0] != first for tensor in tensors) or _mentions(others, first):
        return 0
    return int(symbol.get("high", _ROWS))


def _mentions(size: Any, symbol: str) -> bool:
    """Return whether a symbol stands in size expressions, or in a document with such."""
    if isinstance(size, Mapping):
        return any(_mentions(each, symbol) for each in (size["size"], size["needed"]))
    return any(_mentions(each, symbol) for each in size) if isinstance(size, list) else size == symbol
