"""Instances of placement: the workloads of Tarnawski et al. for one sample's latency, in their cost model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import msgspec

from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.efficient_mip import Instance, SolvedPlacement, place
from tvm_sched.schedulers.efficient_mip.instance import evaluate
from tvm_sched.schedulers.efficient_mip.path_bound import strongest_path
from tvm_sched.schedulers.efficient_mip.separator_bound import separator_bound
from tvm_sched_check.placements import check as independent_check
from tvm_sched_runtime.errors import InfeasibleError, InputError, SchedulerError
from tvm_sched_runtime.files import content_digest, convert, decode_document, encode_document

from .kind import NO_FILES, Answer, Checked, Kind, Proof, checked_in_files

FORMAT, VERSION = "tvm_sched.placement", 1
ANNEALING = 20_000
"""Placements that one annealing run looks at; there are as many runs as time allows."""


class Placed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A solution: the instance's digest, and by operator its accelerator's subgraph, from 1; 0 is a CPU."""

    instance: str
    subgraph: tuple[int, ...]


class PlacementKind(Kind[Instance]):
    """Placements of least latency on accelerators that meet in host memory."""

    name, unit = "placement", "ms"

    def methods(self) -> Sequence[str]:
        """Return the parts of `efficient_mip` as methods: heuristic alone, with annealing, with the published program."""
        return ("annealed", "heuristic", "integer-program")

    def is_random(self, method: str) -> bool:
        """Return true: every method begins with random orders."""
        return True

    def digest(self, task: Instance) -> str:
        """Return the digest of all fields."""
        return content_digest(_text(task))

    def solve(self, task: Instance, method: str, seconds: float, seed: int) -> Answer:
        """Run the method for all of the time: annealing from other seeds again and again, or the solver."""
        begin = time.monotonic()
        if method == "integer-program":
            placement = place(task, Effort("highs", seconds / 2, 0, seed), seed=seed, seconds=seconds / 2)
        else:
            placement = self._repeated(task, ANNEALING if method == "annealed" else 0, begin + seconds, seed)
        body = Placed(self.digest(task), tuple(placement.subgraph))
        return Answer(placement.latency, encode_document(body, FORMAT, VERSION), time.monotonic() - begin)

    def _repeated(self, task: Instance, annealing: int, end: float, seed: int) -> SolvedPlacement:
        best, longest, run = None, 0.0, 0
        while best is None or time.monotonic() + longest < end:
            begin = time.monotonic()
            placement = place(task, None, seed=1000 * seed + run, annealing=annealing, seconds=end - begin)
            best = placement if best is None or placement.latency < best.latency else best
            longest, run = max(longest, time.monotonic() - begin), run + 1
        return best

    def worth(self, task: Instance, solution: bytes, where: str) -> float:
        """Return the latency in milliseconds, by `evaluate`."""
        placed = convert(decode_document(solution, FORMAT, VERSION, where), Placed, where)
        if placed.instance != self.digest(task):
            raise InputError(f"{where}: a placement of instance {placed.instance!r}; this one is {self.digest(task)!r}")
        allowed = len(task.subgraphs)
        if len(placed.subgraph) != len(task.cpu) or not all(0 <= j <= allowed for j in placed.subgraph):
            raise InputError(f"{where}: {len(task.cpu)} numbers from 0 to {allowed} are allowed, one for each operator")
        ends = evaluate(task, placed.subgraph)
        if ends is None:
            raise InfeasibleError(f"{where}: memory, contiguity or operators that belong together are not respected")
        return ends.latency

    def proof(self, task: Instance) -> Proof:
        """Paths, cut into stretches that fit into accelerators (`path_bound`), or separators, if they prove more."""
        bound, path = strongest_path(task)
        by, body = "paths", {"instance": self.digest(task), "bound": bound, "path": path}
        separators = separator_bound(task)
        if separators.bound > bound:
            by, bound = "separators", separators.bound
            body = {"instance": self.digest(task), **separators._asdict()}
        return Proof(bound, by, encode_document(body, "tvm_sched.placement_evidence", VERSION))

    def check(
        self, task: Instance, solution: bytes, proof: Proof, where: str, files: Mapping[str, str] = NO_FILES
    ) -> Checked:
        """Check latency and evidence by `tvm_sched_check.placements`."""
        if proof.evidence is None:
            return Checked()
        contents = {"instance": self.document(task), "solution": solution, "evidence": proof.evidence}
        verdict = checked_in_files(independent_check, contents, where, files)
        if not math.isclose(verdict.latency, self.worth(task, solution, where), rel_tol=1e-9):
            raise SchedulerError(f"{where}: package and tvm_sched_check.placements differ: please report this")
        return Checked("tvm_sched_check.placements", float(verdict.proved))

    def document(self, task: Instance) -> bytes:
        """Return the fields as one text, whose digest solutions name."""
        return encode_document({"instance": _text(task).decode()}, "tvm_sched.placement_problem", VERSION)


def _text(task: Instance) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(task))
