"""Try whether the patches of this folder, which correct Apache TVM, apply, and whether each repairs the installed TVM.

    python upstream/try_patches.py TVM_SOURCE [PATCH ...]

``TVM_SOURCE`` is a git checkout of apache/tvm, which stays as it is. Each patch is applied to it by itself, in memory, and
then all in their order. The tests that a patch adds run with a copy of the installed TVM's Python files, without the patch
and with it: they have to fail first and pass then. If the installed files differ too much from those of the checkout, the
files that the patch changes are the checkout's. Send a patch with ``git am upstream/NN-name.patch`` on a branch of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent
_FILE = re.compile(r"^diff --git a/(\S+) b/", re.MULTILINE)
_TEST = re.compile(r"^\+def (test_\w+)\(", re.MULTILINE)
_NOTE = re.compile(r"^(Corrects|Unnecessary from): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """A patch as ``git format-patch`` writes it, with notes below its ``---`` that do not enter the commit."""

    path: Path
    title: str
    files: tuple[str, ...]
    """The files of TVM that it changes, the tests last."""
    tests: tuple[str, ...]
    """Names of the tests that it adds."""
    corrects: tuple[str, ...]
    """Classes or methods, as in the table of ``docs/frontends.md``."""
    unnecessary_from: str
    """The first release of TVM that has it."""

    @classmethod
    def read(cls, path: Path) -> Patch:
        """Read a patch and its notes."""
        text = path.read_text()
        notes = dict(_NOTE.findall(text))
        title = re.search(r"^Subject: \[PATCH\] (.*(?:\n .*)*)", text, re.MULTILINE)
        files = sorted(_FILE.findall(text), key=lambda name: name.startswith("tests/"))
        return cls(
            path, title[1].replace("\n", "") if title else "", tuple(files), tuple(_TEST.findall(text)),
            tuple(notes["Corrects"].split(", ")), notes["Unnecessary from"],
        )  # fmt: skip

    def applies(self, source: Path, *before: Patch) -> bool:
        """Whether it applies to a checkout's ``HEAD`` after other patches."""
        with tempfile.TemporaryDirectory(prefix="tvm_patches_") as folder:
            environment = os.environ | {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            steps = [
                ["read-tree", "HEAD"],
                *(["apply", "--cached", str(each.path.resolve())] for each in (*before, self)),
            ]
            return all(
                subprocess.run(["git", "-C", str(source), *step], env=environment, capture_output=True).returncode == 0
                for step in steps
            )

    def outcomes(self, source: Path) -> tuple[str, str]:
        """Run its tests with the installed TVM, as it is and with the patch; return pytest's last lines."""
        with tempfile.TemporaryDirectory(prefix="tvm_patches_") as folder:
            root = Path(folder)
            changed = [name for name in self.files if name.startswith("python/")]
            tests = [name for name in self.files if name.startswith("tests/")]
            _copy_installed(root / "python/tvm", changed)
            _copy_of(source, tests, root)
            _patch(root, self.path, "tests/")
            origin = "installed"
            if not _patch(root, self.path, "python/", "--dry-run"):
                _copy_of(source, changed, root)
                origin = "the checkout's"
            without = self._run(root, tests)
            _patch(root, self.path, "python/")
            return f"{without} ({origin})", self._run(root, tests)

    def _run(self, root: Path, tests: list[str]) -> str:
        names = [
            f"{name}::{test}" for name in tests for test in self.tests if f"def {test}(" in (root / name).read_text()
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *names],
            cwd=root, env=os.environ | {"PYTHONPATH": str(root / "python")}, capture_output=True, text=True,
        )  # fmt: skip
        return (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]


def patches() -> list[Patch]:
    """Return all patches in their order."""
    return [Patch.read(path) for path in sorted(FOLDER.glob("*.patch"))]


def _copy_installed(target: Path, changed: list[str]) -> None:
    """Link the files of the installed TVM into a folder; copy those that change."""
    spec = find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("TVM is not installed")
    installed = Path(spec.submodule_search_locations[0])
    shutil.copytree(installed, target, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    for name in changed:
        path = target.parent.parent / name
        path.unlink()
        shutil.copy(installed / Path(name).relative_to("python/tvm"), path)


def _copy_of(source: Path, names: list[str], root: Path) -> None:
    """Copy files of a checkout's ``HEAD`` into a folder."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        content = subprocess.run(["git", "-C", str(source), "show", f"HEAD:{name}"], capture_output=True, check=True)
        (root / name).write_bytes(content.stdout)


def _patch(root: Path, patch: Path, below: str, *options: str) -> bool:
    """Apply the part of a patch for the files below a folder, whose lines may have moved; return whether it fits."""
    parts = re.split(r"(?m)^(?=diff --git )", patch.read_text())
    text = "".join(part for part in parts[1:] if part.startswith(f"diff --git a/{below}"))
    command = ["patch", "-p1", "--no-backup-if-mismatch", *options]
    return subprocess.run(command, cwd=root, input=text, capture_output=True, text=True).returncode == 0


def main(source: str, *names: str) -> int:
    """Try patches, and print a line for each; return 1 if one does not apply or repair."""
    wrong, before = 0, []
    for patch in patches():
        if not names or patch.path.stem[:2] in names or patch.path.name in names:
            alone, after = patch.applies(Path(source)), patch.applies(Path(source), *before)
            without, with_patch = patch.outcomes(Path(source))
            right = alone and after and "failed" in without and "passed" in with_patch and "failed" not in with_patch
            wrong += not right
            print(
                f"{'ok   ' if right else 'WRONG'} {patch.path.name}: applies alone {alone}, after the others {after}; "
                f"without: {without}; with: {with_patch}",
                flush=True,
            )
        before.append(patch)
    return int(bool(wrong))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
