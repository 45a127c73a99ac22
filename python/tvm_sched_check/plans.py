"""Check that an execution plan (``docs/formats/plan.md``) orders all accesses to the same memory.

Two steps are ordered if they are of one queue, or if waits lead from one to the other. A warm run may leave out the copy of
a parameter, so waiting for that copy orders nothing that came before it. What is shown holds for every run that obeys queues
and waits, however long each step takes: no tensor is read before it is written, and two steps that share bytes, one of which
writes them, are ordered. The executor makes sure that a parameter whose copy is left out is still there: it keeps none whose
bytes another tensor has. Workspaces of libraries are not in the plan. A parameter in a file is there from the start: a
kernel may read its pages before the step that reads them ahead.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple

from .document import MALFORMED, Refused

Place = tuple[str, int]
"""A kind of memory and an index: the arena of a device, or an argument, a parameter, an output, a state by itself."""


class Verdict(NamedTuple):
    """What was found of each plan, as lines of text; a plan that does not order its accesses is refused."""

    lines: list[str]
    all_proved: bool


def check(file: str | Path) -> Verdict:
    """Check the plan in a file, or a list of plans; raise `Refused` if accesses are not ordered or the file is wrong."""
    try:
        document = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{file}: cannot be read as JSON ({error})") from None
    plans = document if isinstance(document, list) else [document]
    lines = [check_plan(plan) for plan in plans]
    return Verdict(lines, not any(plan.get("symbols") for plan in plans))


def check_plan(plan: dict[str, Any]) -> str:
    """Return a line that says what was compared; raise `Refused` at the first pair of accesses that nothing orders."""
    try:
        if plan["format"] != "tvm_sched.plan" or plan["version"] != 1:
            raise Refused("the document is not of format 'tvm_sched.plan' and version 1, which is read here")
        if plan.get("symbols"):
            return f"plan {plan['name']!r}: not checked: a template, whose offsets are decided when it runs"
        accesses = Accesses(plan)
        accesses.check()
    except MALFORMED as error:
        raise Refused(f"the plan is not as its format says: {type(error).__name__} {error}") from None
    return (
        f"plan {plan['name']!r}: {len(plan['steps'])} steps in {len(plan['queues'])} queues; "
        f"{len(accesses.pairs)} pairs that share memory are ordered"
    )


class Segment(NamedTuple):
    """Bytes of a place: who wrote them last, as part of which buffer, and who has read them since."""

    writer: int
    buffer: int
    readers: tuple[int, ...]


class _Memory:
    """The bytes of one place, as segments that were accessed alike; the last has no end."""

    def __init__(self) -> None:
        self.starts, self.segments = [0], [Segment(-1, -1, ())]

    def take(self, low: int, high: int) -> slice:
        """Return where the segments from ``low`` to ``high`` are, after those that lie across are cut."""
        for at in (low, high):
            k = bisect_right(self.starts, at) - 1
            if self.starts[k] < at:
                self.starts.insert(k + 1, at)
                self.segments.insert(k + 1, self.segments[k])
        first = bisect_right(self.starts, low) - 1
        return slice(first, bisect_right(self.starts, high - 1))


class Accesses:
    """The steps of a plan, what each knows to have ended, and the pairs that share memory, which `check` collects."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.steps, self.buffers = plan, plan["steps"], plan["buffers"]
        in_place = {k for k, state in enumerate(plan.get("states", ())) if state.get("in_place")}
        self.place = [_place(buffer["source"], in_place) for buffer in self.buffers]
        self.span = [(start := b["source"].get("offset", 0), start + _size(b)) for b in self.buffers]
        self.optional = self._optional()
        self.before = self._before()
        self.memory = {place: _Memory() for place in self.place}
        self.pairs = set[tuple[int, int]]()

    def _optional(self) -> set[int]:
        """Return the steps that warm runs may leave out: those that move a parameter that stays."""
        parameter = {b: index for b, (kind, index) in enumerate(self.place) if kind == "parameter"}
        moves: dict[int, list[int]] = {}
        leaving = set[int]()
        for k, step in enumerate(self.steps):
            number = parameter.get(step["inputs"][0]) if step["kind"] in ("copy", "read") else None
            if number is None:
                continue
            if step["kind"] == "copy":
                target = step["outputs"][0]
                if self.place[target][0] != "arena":
                    continue  # it lands in an output, which each run has anew
                parameter[target] = number
            moves.setdefault(number, []).append(k)
            if step.get("evict"):
                leaving.add(number)
        return {k for number, own in moves.items() if number not in leaving for k in own}

    def _before(self) -> list[int]:
        """Return for each step the set, as bits, of the steps that have ended whenever it begins."""
        before, passed = list[int](), [0] * len(self.plan["queues"])
        for k, step in enumerate(self.steps):
            known = passed[step["queue"]]
            for wait in step.get("waits", ()):
                if not 0 <= wait < k:
                    raise Refused(f"step {k} waits for {wait}, which is no earlier step")
                known |= self._passes_on(wait, before[wait])
            before.append(known)
            passed[step["queue"]] |= self._passes_on(k, known)
        return before

    def _passes_on(self, step: int, before: int) -> int:
        return 1 << step | (0 if step in self.optional else before)

    def check(self) -> None:
        """Go through the steps in the plan's order, which their order in any run agrees with."""
        for k, step in enumerate(self.steps):
            if step["kind"] in ("read", "host_read"):
                continue
            for b in step.get("inputs", ()):
                self._read(k, b)
            for b in step.get("outputs", ()):
                self._write(k, b)

    def _read(self, step: int, buffer: int) -> None:
        kind, index = self.place[buffer]
        if kind in ("argument", "parameter") or self.span[buffer][0] == self.span[buffer][1]:
            return
        memory = self.memory[kind, index]
        cut = memory.take(*self.span[buffer])
        for k in range(cut.start, cut.stop):
            segment = memory.segments[k]
            if segment.writer < 0 and kind != "state":
                raise Refused(f"{self._named(step)} reads {self._tensor(buffer)}, which no earlier step writes")
            if segment.writer >= 0:
                self._must_follow(step, segment.writer, buffer)
                if segment.buffer != buffer and kind == "arena":
                    raise Refused(
                        f"{self._named(step)} reads {self._tensor(buffer)}, whose bytes {self._named(segment.writer)} has "
                        f"overwritten with {self._tensor(segment.buffer)}"
                    )
            memory.segments[k] = segment._replace(readers=(*segment.readers, step))

    def _write(self, step: int, buffer: int) -> None:
        if self.span[buffer][0] == self.span[buffer][1]:
            return
        memory = self.memory[self.place[buffer]]
        cut = memory.take(*self.span[buffer])
        for segment in memory.segments[cut]:
            for other in {*segment.readers, segment.writer} - {-1}:
                if other != step:
                    self._must_follow(step, other, buffer)
                elif self.place[buffer][0] != "state":
                    raise Refused(
                        f"{self._named(step)} writes {self._tensor(buffer)} over what it reads or writes itself"
                    )
        memory.starts[cut] = [self.span[buffer][0]]
        memory.segments[cut] = [Segment(step, buffer, ())]

    def _must_follow(self, step: int, other: int, buffer: int) -> None:
        self.pairs.add((other, step))
        if not self.before[step] >> other & 1:
            raise Refused(
                f"{self._named(step)} and {self._named(other)} share the memory of {self._tensor(buffer)}, at least one of "
                f"them writes it, and nothing orders them"
            )

    def _named(self, step: int) -> str:
        queue = self.plan["queues"][self.steps[step]["queue"]]["name"]
        return f"step {step} ({self.steps[step]['kind']} {self.steps[step]['name']!r} in queue {queue!r})"

    def _tensor(self, buffer: int) -> str:
        place, index = self.place[buffer]
        where = f" of {self.plan['devices'][index]['name']!r}" if place == "arena" else ""
        low, high = self.span[buffer]
        return f"{self.buffers[buffer]['name']!r} (bytes {low} to {high} of {place} {index}{where})"


def _place(source: dict[str, Any], in_place: set[int]) -> Place:
    if source["kind"] == "arena":
        return "arena", source["device"]
    if source["kind"] == "next_state" and source["index"] in in_place:
        return "state", source["index"]
    return source["kind"], source["index"]


_BITS = re.compile(r"[a-z]+(\d+)")


def _size(buffer: dict[str, Any]) -> int:
    """Return the bytes of a buffer; of ``float8_e4m3fn`` and its like an element has the first number of bits."""
    bits = _BITS.match(buffer["dtype"])
    return (math.prod(buffer["shape"]) * (int(bits[1]) if bits else 8) + 7) // 8
