"""A loaded artifact as clients see it: names, types, and the batches that it takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
            raise InputError(f"{file}: has outputs whose sizes only a run knows, which the server does not offer yet")
        module.configure(instances=instances, watchdog=watchdog)
        plans = module.plans()
        inputs = _common([plan["arguments"] for plan in plans])
        outputs = _common([module.outputs(plan) for plan in range(len(plans))])
        for tensor in (*inputs, *outputs):
            if tensor.dtype not in DATATYPES:
                raise InputError(f"{file}: {tensor.name!r} is {tensor.dtype}, which the protocol has no name for")
        shapes = frozenset(tuple(tuple(argument["shape"]) for argument in plan["arguments"]) for plan in plans)
        return cls(name, version, module, inputs, outputs, shapes)

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sizes of the first dimension, if the plans differ in nothing else; () if rows cannot be put together."""
        sizes = set()
        for shapes in self.shapes:
            if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) != 1:
                return ()
            sizes.add(shapes[0][0])
        rests = {tuple(shape[1:] for shape in shapes) for shapes in self.shapes}
        batched = all(tensor.shape and tensor.shape[0] == -1 and -1 not in tensor.shape[1:] for tensor in self.outputs)
        return tuple(sorted(sizes)) if len(rests) == 1 and len(sizes) > 1 and batched else ()

    def check(self, arrays: Sequence[Array], batching: bool) -> int:
        """Return the rows of a request, 0 if it cannot be joined with others.

        Raises
        ------
        RequestError
            No plan takes inputs of these shapes.
        """
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
        """Put requests' rows into one batch of the next size that there is; what remains of it is zero."""
        size = next(size for size in self.batch_sizes if size >= rows)
        if len(requests) == 1 and size == rows:
            return list(requests[0])
        joined = []
        for parts in zip(*requests, strict=True):
            batch = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
            np.concatenate(parts, out=batch[:rows])
            batch[rows:] = 0
            joined.append(batch)
        return joined


def _common(plans: Sequence[Sequence[dict[str, Any]]]) -> tuple[TensorType, ...]:
    """Return the tensors of several plans, with -1 for sizes that differ."""
    tensors = []
    for each in zip(*plans, strict=True):
        sizes = zip(*(tensor["shape"] for tensor in each), strict=True)
        shape = tuple(size[0] if len(set(size)) == 1 else -1 for size in sizes)
        tensors.append(TensorType(str(each[0]["name"]), str(each[0]["dtype"]), shape))
    return tuple(tensors)
