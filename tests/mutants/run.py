"""Break the code in many small ways, one at a time; fail if the tests let one pass.

``cuda.toml`` has the records of the CUDA runtime and kernels, whose tests run on emulated GPUs, ``core.toml`` those of
simulator, plans, bounds and checker: a file, a piece of it that occurs once, what stands in its place, and what that breaks.
A record that no longer applies fails the command, too. Of C++ the one object is compiled anew and the library is linked in a
folder of its own, which ``TVM_SCHED_LIBRARY`` names; the objects of the last build (``make build``) are the others. A run
that was ended goes on where it was, as long as no source and no test has changed. ``outcomes.json`` keeps what became of a
record last, with the commit, for the page.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build"
LIBRARIES = ROOT / "python" / "tvm_sched_runtime" / "_lib"
OUTCOMES = HERE / "outcomes.json"
LIMIT, NO_TESTS = "the limit of time", 5
"""What is noted of tests that hang, and pytest's status where no test was chosen."""

PYTEST = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header")
EMULATED = ("tests/cuda_emulator/run.py", "--devices", "2", "--", sys.executable, "-m", "pytest", *PYTEST, "-m", "gpu")
SUITES = {
    "runtime": ("-m", "pytest", *PYTEST, "tests/runtime/test_fake_cuda.py"),
    "libraries": (*EMULATED, "tests/cuda_emulator/cases_libraries.py", "tests/cuda/test_nvidia.py"),
    "kernels": ("-m", "pytest", *PYTEST, "tests/cuda_emulator/test_own_kernels.py"),
    "simulator": ("-m", "pytest", *PYTEST, "tests/schedule"),
    "plans": ("-m", "pytest", *PYTEST, "tests/runtime", "tests/execution_plan", "-m", "not slow"),
    "checker": ("-m", "pytest", *PYTEST, "tests/checker"),
    "bounds": ("-m", "pytest", *PYTEST, "tests/bounds", "tests/checker"),
}
"""What is run for a mutant, to its first failure."""


SETS = {
    "cuda": """\
# Mutations of the CUDA runtime and kernels

What the tests on [emulated GPUs](../../tests/cuda_emulator/README.md) say of the runtime and of kernels that are broken
on purpose, one change at a time. Each record of `tests/mutants/cuda.toml` is built, and its tests run until
one fails. A mutant that passes all tests fails the command, and so does a record that no longer applies.

    make mutants

{caught} of {count} mutants were caught{left}. *Order*: two operations
touch the same bytes and nothing orders them, which the emulated driver tells whatever the values are. *Values*: results are
wrong. *Refused*: the driver or the runtime refuses a call. *Assertion*: a test expects something else. *Time*: the tests
hang.
{survived}
| what is broken | file | caught by | how | at commit |
|---|---|---|---|---|""",
    "core": """\
# Mutations of simulator, plans, bounds and checker

What the tests say of rules and prices that are broken on purpose, one change at a time. Each record of
`tests/mutants/core.toml` is built, and its tests run until one fails. A mutant that passes all tests fails the command, and
so does a record that no longer applies.

    make mutants MUTANTS_ARGS="--set core"

{caught} of {count} mutants were caught{left}. *Assertion*: a test expects something else. *Crash*: the process ends.
*Time*: the tests hang.
{survived}
| what is broken | file | caught by | how | at commit |
|---|---|---|---|---|""",
}
"""What stands on the page of each set of records."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change that must not go unnoticed."""

    file: str
    old: str
    new: str
    breaks: str
    tests: str = "runtime"
    first: str = ""

    @property
    def path(self) -> Path:
        """The file that is changed."""
        return ROOT / self.file

    def changed(self) -> str:
        """The file's text with the change."""
        return self.path.read_text().replace(self.old, self.new)

    def why_not(self) -> str:
        """Why the record does not apply; empty where it does."""
        if self.tests not in SUITES:
            return f"there are no tests {self.tests!r}, only {', '.join(SUITES)}"
        if not self.path.is_file():
            return "there is no such file"
        if self.old == self.new:
            return "it changes nothing"
        count = self.path.read_text().count(self.old)
        return "" if count == 1 else f"the old text occurs {count} times: find it anew"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: who caught it and how; nobody where it survived."""

    caught_by: str
    how: str
    commit: str = ""


def read_mutants(name: str) -> list[Mutant]:
    """The records of a set, checked."""
    mutants = msgspec.toml.decode((HERE / f"{name}.toml").read_bytes(), type=dict[str, list[Mutant]])["mutant"]
    wrong = [f"{m.file}: {m.breaks}: {why}" for m in mutants if (why := m.why_not())]
    if wrong:
        sys.exit("records of tests/mutants that no longer apply:\n" + "\n".join(wrong))
    return mutants


def command_of(output: str) -> str:
    """Ninja's command that makes a file of the last build."""
    listed = subprocess.run(
        ["ninja", "-C", str(BUILD), "-t", "commands", "-s", output], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        sys.exit(f"the library has not been built, run `make build` first: {listed.stderr or listed.stdout}")
    return listed.stdout.strip().splitlines()[-1]


def build(mutant: Mutant, folder: Path) -> dict[str, str]:
    """Compile and link a mutant; the environment in which it is used."""
    folder.mkdir(parents=True, exist_ok=True)
    if mutant.path.suffix != ".cc":
        overlay = folder / "python"
        shutil.rmtree(overlay, ignore_errors=True)
        shutil.copytree(ROOT / "python", overlay, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
        changed = overlay / mutant.path.relative_to(ROOT / "python")
        changed.unlink()  # a link to the file itself
        changed.write_text(mutant.changed())
        return {"PYTHONPATH": str(overlay)}
    source, made = folder / mutant.path.name, folder / f"{mutant.path.stem}.o"
    source.write_text(mutant.changed())
    target = "bindings" if mutant.file.startswith(("cpp/ffi/", "cpp/kernels/cuda/")) else "objects"
    known = f"CMakeFiles/tvm_sched_{target}.dir/{mutant.file}.o"
    compile_it = command_of(known).replace(str(mutant.path), str(source)).replace(known, str(made))
    library = folder / "libtvm_sched.so"
    link = command_of(str(LIBRARIES / "libtvm_sched.so")).replace(known, str(made))
    link = link.replace(f"-o {LIBRARIES / 'libtvm_sched.so'}", f"-o {library}")
    for command in (compile_it, link):
        done = subprocess.run(command, shell=True, cwd=BUILD, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(f"does not compile: {done.stderr[-2000:]}")
    for other in LIBRARIES.iterdir():  # which are looked for beside it
        if not (folder / other.name).exists():
            (folder / other.name).symlink_to(other)
    return {"TVM_SCHED_LIBRARY": str(library)}


def run(mutant: Mutant, variables: dict[str, str], seconds: float) -> Outcome:
    """Run the mutant's tests until one fails; first the one that is likely to, or that failed before."""
    before = kept().get(name_of(mutant), Outcome("", "")).caught_by
    likely = mutant.first or re.sub(r"\W.*", "", before.removeprefix("test_without_a_gpu"))
    if likely and before != LIMIT:
        outcome = run_tests(mutant, variables, seconds, ["-k", likely])
        if outcome.how:
            return outcome
    return run_tests(mutant, variables, seconds, [])


def run_tests(mutant: Mutant, variables: dict[str, str], seconds: float, chosen: list[str]) -> Outcome:
    """Run some of the mutant's tests until one fails."""
    paths = [variables.get("PYTHONPATH", ""), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, *SUITES[mutant.tests], *chosen, *_python_path(variables)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as tests:
        try:
            said = tests.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.communicate()
            return Outcome(LIMIT, f"more than {seconds:.0f} s")
    if tests.returncode in (0, NO_TESTS):
        return Outcome("", "")
    failed, how = re.search(r"^FAILED \S+::(\S+)", said, re.MULTILINE), _reason(said)
    if failed is None and how != "crash" and tests.returncode > 0:
        raise ValueError(f"the tests did not run: {said[-2000:]}")
    return Outcome(_case(failed[1]) if failed else "", how)


def _python_path(variables: dict[str, str]) -> list[str]:
    """Options of pytest with which a mutant's Python package stands before the repository's, which pytest puts first."""
    if "PYTHONPATH" not in variables:
        return []
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    places = [variables["PYTHONPATH"], *(place for place in settings["pythonpath"] if place != "python")]
    return ["-o", f"pythonpath={' '.join(places)}"]


def _case(name: str) -> str:
    """The part of a test's name that says what it is about."""
    inner = re.search(r"\[(?:fake_cuda_\w+-)?(.*?)(?:-\d-\d)?\]", name)
    return inner[1] if inner and name.startswith("test_without_a_gpu") else name


def _reason(said: str) -> str:
    """In a few words, how a failure showed."""
    if "no order: " in said or "memory that is freed" in said:
        return "order"
    if re.search(r"Segmentation|double free|malloc\(\)|free\(\)|corrupt|assert status == 0.*\n?.*-\d+", said):
        return "crash"
    if "ExecutionError" in said or "emulated GPU:" in said:
        return "refused"
    if "Mismatched elements" in said or "not almost equal" in said or "Arrays are not equal" in said:
        return "values"
    return "assertion"


def outcome_of(mutant: Mutant, folder: Path, key: str, seconds: float) -> Outcome:
    """Build and run one mutant, or return what was found of it before; survivors run again."""
    here = folder / name_of(mutant)
    known = folder / f"{hashlib.sha256(msgspec.json.encode([key, mutant])).hexdigest()[:24]}.json"
    if known.exists():
        return msgspec.json.decode(known.read_bytes(), type=Outcome)
    try:
        outcome = replace(run(mutant, build(mutant, here), seconds), commit=commit())
    finally:
        shutil.rmtree(here, ignore_errors=True)
    if outcome.how:
        known.write_bytes(msgspec.json.encode(outcome))
    return outcome


def fake_driver(folder: Path) -> str:
    """Build the driver of the tests once for all mutants; its file."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", "import fake_driver; print(fake_driver.library())"]
    environment = {**os.environ, "TVM_SCHED_CACHE": str(folder), "PYTHONPATH": f"{ROOT}/tests:{ROOT}/python"}
    environment.pop("FAKE_CUDA_LIBRARY", None)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """The short name of the commit that is checked out."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def name_of(mutant: Mutant) -> str:
    """A record's name in ``outcomes.json``: another change is another record."""
    return hashlib.sha256(msgspec.json.encode([mutant.file, mutant.old, mutant.new])).hexdigest()[:16]


def kept() -> dict[str, Outcome]:
    """What became of each record when it was run last, by its name."""
    return msgspec.json.decode(OUTCOMES.read_bytes(), type=dict[str, Outcome]) if OUTCOMES.exists() else {}


def keep(found: dict[str, Outcome]) -> None:
    """Write what became of records, and the pages of all of them; other runs may do so at the same time."""
    sets = {name: read_mutants(name) for name in SETS}
    known = {name_of(mutant) for mutants in sets.values() for mutant in mutants}
    with (BUILD / "mutants.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcomes = {name: outcome for name, outcome in sorted({**kept(), **found}.items()) if name in known}
        written = BUILD / "outcomes.json"  # others read the file at the same time
        written.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes), indent=1) + b"\n")
        written.replace(OUTCOMES)
        for name, mutants in sets.items():
            of_set = [outcomes.get(name_of(mutant), Outcome("", "not run")) for mutant in mutants]
            (ROOT / "docs" / "results" / f"{name}_mutants.md").write_text(page(SETS[name], mutants, of_set))


def state_of_sources() -> str:
    """A digest of all that a mutant's result depends on."""
    found = hashlib.sha256()
    folders = ("runtime", "cuda_emulator", "cuda", "schedule", "execution_plan", "checker", "bounds")
    sources = ("cpp", "python")
    for folder in (*sources, *(f"tests/{name}" for name in folders)):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".cuh", ".py") and path != Path(__file__):
                found.update(path.read_bytes())
    return found.hexdigest()


def page(head: str, mutants: list[Mutant], outcomes: list[Outcome]) -> str:
    """The table of results of a set."""
    caught, left = sum(o.how not in ("", "not run") for o in outcomes), sum(o.how == "not run" for o in outcomes)
    rest = f"; {left} have not been run yet" if left else ""
    survived = sum(not o.how for o in outcomes)
    told = f"\n{survived} survived: no test tells them from the code.\n" if survived else ""
    lines = [head.format(caught=caught, count=len(mutants), left=rest, survived=told)]
    for mutant, outcome in zip(mutants, outcomes, strict=True):
        how = "time" if outcome.caught_by == LIMIT else outcome.how or "**survived**"
        name = mutant.file.split("/")[-1]
        lines.append(f"| {mutant.breaks} | `{name}` | {outcome.caught_by} | {how} | {outcome.commit} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Build and run all mutants, or those that are named; the status is 1 where one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="those whose file or text contains one of these")
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS), help="sets of records (default: all)")
    parser.add_argument("--check", action="store_true", help="only look whether all records apply")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument(
        "--seconds", type=float, default=150, help="tests that take longer hang, which a person would see"
    )
    asked = parser.parse_args()
    known = [mutant for name in asked.set for mutant in read_mutants(name)]
    mutants = [m for m in known if any(word in f"{m.file} {m.breaks}" for word in asked.only)]
    if asked.check:
        print(f"{len(mutants)} records apply")
        return
    folder, key, survivors = BUILD / "mutants", state_of_sources(), 0
    os.environ["FAKE_CUDA_LIBRARY"] = fake_driver(folder / f"driver-{key[:16]}")
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        waiting = [pool.submit(outcome_of, mutant, folder, key, asked.seconds) for mutant in mutants]
        for mutant, future in zip(mutants, waiting, strict=True):
            outcome = future.result()
            survivors += not outcome.how
            print(f"{outcome.how or 'SURVIVED'}: {mutant.file}: {mutant.breaks}: {outcome.caught_by}", flush=True)
            keep({name_of(mutant): outcome})
    if survivors:
        sys.exit(f"{survivors} of {len(mutants)} mutants survived")
    print(f"all of {len(mutants)} mutants were caught")


if __name__ == "__main__":
    main()
