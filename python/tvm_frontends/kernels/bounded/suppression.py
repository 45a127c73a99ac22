"""The kernel of ONNX's NonMaxSuppression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from .writing import Kernel, add_one, assign, counter, least, long, loops, when


@dataclass(frozen=True)
class Suppression:
    """Sizes, which are numbers or symbols, and options of a suppression; ``most`` is a number or ``boxes``."""

    batch: Any
    classes: Any
    boxes: Any
    most: Any
    """Largest number of boxes kept in one class."""
    centred: bool
    """Whether boxes are centre and size (x, y, width, height), not two corners (y, x, y, x) in any order."""
    filtered: bool
    """Whether scores must exceed a threshold."""

    @property
    def bound(self) -> Any:
        """Largest number of rows of the result."""
        return self.batch * self.classes * least(self.most, self.boxes)


def suppression_kernel(case: Suppression) -> tirx.PrimFunc:
    """Build the kernel that keeps the boxes of the highest scores in each class, without those that overlap a better one.

    Its arguments: boxes ``(batch, boxes, 4)``, scores ``(batch, classes, boxes)``, the largest number of a class ``(1,)``
    int64, the thresholds of the overlap and of the score ``(1,)`` float32. It writes rows of batch, class and box
    ``(bound, 3)`` int64, and their count ``(1,)``. Boxes of equal score keep their order, as in ONNX's reference. Each
    selected box removes the boxes that it overlaps.
    """
    kernel = Kernel()
    with kernel.write("non_max_suppression"):
        bound, batch, classes, number = kernel.sizes([case.bound, case.batch, case.classes, case.boxes])
        most_boxes = case.most if isinstance(case.most, int) else number
        boxes = kernel.argument("boxes", (batch, number, 4), "float32")
        scores = kernel.argument("scores", (batch, classes, number), "float32")
        most = kernel.argument("most", (1,), "int64")
        overlap = kernel.argument("overlap", (1,), "float32")
        threshold = kernel.argument("threshold", (1,), "float32")
        rows = kernel.argument("rows", (bound, 3), "int64")
        count = kernel.argument("count", (1,), "int64")
        candidates = T.alloc_buffer((number,), "int64")
        written, left, taken, best, kept = (counter() for _ in range(5))
        with loops([batch, classes]) as (b, c):
            assign(left, 0)
            with loops([number]) as (k,), when(scores[b, c, k] > threshold[0] if case.filtered else True):
                T.buffer_store(candidates, k, [left[0]])
                add_one(left)
            assign(taken, 0)
            with T.While(tirx.all(left[0] > 0, taken[0] < most[0], taken[0] < long(most_boxes))):
                assign(best, 0)
                with loops([left[0]]) as (k,), when(scores[b, c, candidates[k]] > scores[b, c, candidates[best[0]]]):
                    assign(best, k)
                chosen = T.Bind(candidates[best[0]])
                for column, value in enumerate((b, c, chosen)):
                    T.buffer_store(rows, long(value), [written[0], long(column)])
                add_one(written)
                add_one(taken)
                assign(kept, 0)
                with loops([left[0]]) as (k,):
                    other = T.Bind(candidates[k])
                    with when(other != chosen), when(tirx.Not(_overlap(boxes, b, chosen, other, case, overlap[0]))):
                        T.buffer_store(candidates, other, [kept[0]])
                        add_one(kept)
                assign(left, kept[0])
        T.buffer_store(count, written[0], [0])
    return kernel.function


def _overlap(boxes: Any, b: Any, first: Any, second: Any, case: Suppression, limit: Any) -> Any:
    """Whether the intersection of two boxes, divided by their union, exceeds a limit; empty boxes overlap nothing."""
    zero = tirx.const(0, "float32")
    sides = [_sides(boxes, b, box, case.centred) for box in (first, second)]
    shared = [
        T.Bind(tirx.min(sides[0][axis][1], sides[1][axis][1]) - tirx.max(sides[0][axis][0], sides[1][axis][0]))
        for axis in (0, 1)
    ]
    areas = [T.Bind((x[1] - x[0]) * (y[1] - y[0])) for x, y in sides]
    area = T.Bind(shared[0] * shared[1])
    union = T.Bind(areas[0] + areas[1] - area)
    solid = [value > zero for value in (*shared, area, *areas, union)]
    return T.Bind(tirx.all(*solid, area / union > limit))


def _sides(boxes: Any, b: Any, box: Any, centred: bool) -> list[tuple[Any, Any]]:
    """Return the lower and upper end of a box along both axes."""
    if centred:
        half = tirx.const(0.5, "float32")
        return [
            (boxes[b, box, k] - boxes[b, box, k + 2] * half, boxes[b, box, k] + boxes[b, box, k + 2] * half)
            for k in (0, 1)
        ]
    ends = [(boxes[b, box, k], boxes[b, box, k + 2]) for k in (0, 1)]
    return [(tirx.min(low, high), tirx.max(low, high)) for low, high in ends]
