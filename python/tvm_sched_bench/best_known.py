"""The best known solutions and bounds of a suite, stored as files with it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import convert, decode_document, read_bytes, write_atomically, write_document

from .suite import Case, Suite

FORMAT, VERSION = "tvm_sched.best_known", 1


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Best known solution and bound of an instance.

    Examples
    --------
    >>> from tvm_sched_bench import Known
    >>> Known(case.digest, value=3750.0, method="heft", bound=3000.0, bound_by="device work").value
    3750.0
    """

    digest: str
    """Digest of the instance's content."""
    value: float
    method: str
    """Method that found the solution."""
    bound: float
    bound_by: str
    checked: str = ""
    """The other implementation that checked the solution, and the bound unless it ends in ``alone``; empty: none."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    instances: dict[str, Known]


class BestKnown:
    """``best.json`` and the folder ``best`` beside a suite: solutions and evidence, compressed.

    Examples
    --------
    >>> BestKnown(suite).of(case)
    """

    def __init__(self, suite: Suite) -> None:
        self.file, self.folder = suite.folder / "best.json", suite.folder / "best"
        self.instances: dict[str, Known] = {}
        if self.file.exists():
            data = decode_document(read_bytes(self.file), FORMAT, VERSION, os.fspath(self.file))
            self.instances = convert(data, _Document, os.fspath(self.file)).instances

    def of(self, case: Case) -> Known | None:
        """Return the record of an instance; None if there is none or the instance has changed since."""
        known = self.instances.get(case.name)
        return known if known is not None and known.digest == case.digest else None

    def add(self, case: Case, known: Known, solution: bytes, evidence: bytes | None) -> None:
        """Keep a solution, its evidence and its record."""
        for name, content in (("solution", solution), ("evidence", evidence)):
            file = self._path(case, name)
            if content is None:
                file.unlink(missing_ok=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, gzip.compress(content, mtime=0))
        self.note(case, known)

    def note(self, case: Case, known: Known) -> None:
        """Change the record of an instance; its solution stays."""
        self.instances[case.name] = known
        body = _Document(dict(sorted(self.instances.items())))
        write_document(self.file, body, FORMAT, VERSION)

    def solution(self, case: Case) -> bytes:
        """Return the kept solution; raise `InputError` if there is none."""
        file = self._path(case, "solution")
        if not file.exists():
            raise InputError(f"{file} is missing: the best known solution of {case.name!r}")
        return read_bytes(file)

    def evidence(self, case: Case) -> bytes | None:
        """Return the kept evidence of the bound, if there is any."""
        file = self._path(case, "evidence")
        return read_bytes(file) if file.exists() else None

    def files(self, case: Case) -> dict[str, str]:
        """Return the paths of solution and evidence, whether the files exist or not."""
        return {what: os.fspath(self._path(case, what)) for what in ("solution", "evidence")}

    def _path(self, case: Case, what: str) -> Path:
        return self.folder / f"{case.name}.{what}.json.gz"
