"""`Kind`: the interface of all kinds of instances."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tvm_sched.registry import Method, Methods
from tvm_sched_check import Refused
from tvm_sched_runtime.errors import InputError

Task = TypeVar("Task")
Verdict = TypeVar("Verdict")


@dataclass(frozen=True)
class Proof:
    """A bound on the worth of any solution: the argument, and the evidence that can be checked, if there is any."""

    bound: float
    by: str
    evidence: bytes | None = None


@dataclass(frozen=True)
class Checked:
    """Result of an independent checker: its name (empty if none covers the instance) and the bound that it proves.

    ``proved`` is None where it proves none.
    """

    by: str = ""
    proved: float | None = None


@dataclass(frozen=True)
class Answer:
    """A method's solution: its worth, its document, the method's own seconds, and the bound that the method proved."""

    value: float
    solution: bytes
    seconds: float
    proof: Proof | None = None


NO_FILES: Mapping[str, str] = {}
"""Solution and evidence are in no files that a message could name."""


class Kind(ABC, Generic[Task]):
    """A kind of instances."""

    name: ClassVar[str]
    unit: ClassVar[str]
    measure: ClassVar[str] = "cost"
    """Name of the kind, unit of a solution's worth, and name of the measure."""
    most: ClassVar[bool] = False
    """Whether a solution of larger worth is better; of others the least is."""

    @abstractmethod
    def methods(self) -> Sequence[str]:
        """Return the names of all methods."""

    @abstractmethod
    def is_random(self, method: str) -> bool:
        """Return whether a method's answer depends on a seed."""

    @abstractmethod
    def digest(self, task: Task) -> str:
        """Return the digest of the instance's content."""

    @abstractmethod
    def solve(self, task: Task, method: str, seconds: float, seed: int) -> Answer:
        """Run a method for some seconds; raises `TvmSchedError` where it finds nothing."""

    @abstractmethod
    def worth(self, task: Task, solution: bytes, where: str) -> float:
        """Return the worth of a solution; raise `InputError` if the solution is wrong."""

    @abstractmethod
    def proof(self, task: Task) -> Proof:
        """Return the package's bound for the instance."""

    def prove(self, task: Task, value: float, known: Proof, iterations: int) -> Proof:
        """Compute a bound with evidence for an instance with a solution worth ``value``; by default, return `proof`."""
        return self.proof(task)

    def check(
        self, task: Task, solution: bytes, proof: Proof, where: str, files: Mapping[str, str] = NO_FILES
    ) -> Checked:
        """Check a solution and the evidence of a bound by an implementation of their own.

        ``files`` says in which files ``solution`` and ``evidence`` are kept, for messages.

        Raises `InputError` where that refuses one of them, and `SchedulerError` where a solution is worth something else.
        """
        return Checked()

    def document(self, task: Task) -> bytes:
        """Return the instance as a file for methods outside of this package; empty if there is no format."""
        return b""

    def better(self, value: float, than: float | None) -> bool:
        """Return whether a worth is better than another one."""
        return than is None or (value > than if self.most else value < than)

    def holds(self, proof: Proof, checked: Checked) -> bool:
        """Return whether a bound claims no more than its evidence proves, but for rounding."""
        if checked.proved is None:
            return False
        return not self.better(checked.proved, proof.bound) or math.isclose(proof.bound, checked.proved, rel_tol=1e-12)

    def ratio(self, value: float, best: float) -> float:
        """Return how many times worse a worth is than ``best``; 1 if it is as good."""
        worse, good = (best, value) if self.most else (value, best)
        return worse / good if good else 1.0 if worse == good else float("inf")


def checked_in_files(
    check: Callable[..., Verdict], contents: Mapping[str, bytes], where: str, files: Mapping[str, str]
) -> Verdict:
    """Write contents to files and return the verdict of a checker that reads them.

    Parameters
    ----------
    check : callable
        Takes paths in the order of ``contents``.
    contents : dict of str to bytes
        By what each is: ``instance``, ``solution``, ``evidence``.
    where : str
        The instance's name.
    files : dict of str to str
        Where contents are kept: messages name these files instead of those that are written here.

    Raises
    ------
    InputError
        The checker refuses one of the files.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = {what: Path(folder) / f"{what}.json" for what in contents}
        for what, path in paths.items():
            path.write_bytes(contents[what])
        try:
            return check(*paths.values())
        except Refused as error:
            reason = str(error)
            for what, path in paths.items():
                reason = reason.replace(str(path), files.get(what, f"its {what}"))
            package = check.__module__.rpartition(".")[0]
            raise InputError(f"{where}: refused by {package}: {reason}") from None


def limited(methods: Methods[Any], name: str, seconds: float, seed: int) -> tuple[Method[Any], dict[str, Any]]:
    """Return a registered method and the options that limit it to this time, this seed and one core."""
    method = methods.get(name)
    wanted = {"time_limit": seconds, "total_time_limit": seconds, "seed": seed, "threads": 1}
    return method, {key: value for key, value in wanted.items() if key in method.option_names}


def has_seed(methods: Methods[Any], name: str) -> bool:
    """Return whether a registered method has the option ``seed``."""
    return "seed" in methods.get(name).option_names
