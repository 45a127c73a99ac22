"""Wrong things of every kind at every entry: each is refused by one of our errors, which says what is wrong in our words.

The wrong things are made systematically: mutations of small valid files, and values of many kinds as arguments. What is not
refused must be accepted: no other error may come out, and no message may have a traceback, a class of another library, or a
place in source code.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.input_shapes import parse_constants, parse_shapes
from tvm_sched_runtime.problem import Problem, load_topology
from tvm_sched_runtime.runtime import load
from tvm_sched_runtime.schedule import Schedule, simulate, verify
from user_errors_cases import COUNT, ODD, check, damaged


def mutations(document: Any, seed: int) -> Iterator[Any]:
    """Replace, remove, add or double a part of a JSON document."""
    rng = random.Random(seed)
    wrong = [None, -1, 0, "x", "", [], {}, True, 1.5, 2**70, float("nan"), [[]], ["x"], {"x": 1}, "../x"]
    for _ in range(COUNT):
        changed = copy.deepcopy(document)
        *path, last = rng.choice([each for each in _paths(changed) if each])
        owner = changed
        for key in path:
            owner = owner[key]
        match rng.randrange(4):
            case 0 | 1:
                owner[last] = rng.choice(wrong)
            case 2:
                del owner[last]
            case _ if isinstance(owner, dict):
                owner["unknown"] = 1
            case _:
                owner.append(copy.deepcopy(owner[last]))
        yield changed


def _paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    keys = (
        document if isinstance(document, dict) else range(min(len(document), 2)) if isinstance(document, list) else ()
    )
    for key in keys:
        yield from _paths(document[key], (*path, key))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return random_problem(7, operators=8, devices=2, memory="generous")


@pytest.fixture(scope="module")
def schedule(problem: Problem) -> Schedule:
    return solve(problem, method="heft")


def test_problem_files(problem: Problem, tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    problem.save(file)
    content = file.read_bytes()
    for changed in mutations(json.loads(content), 1):
        file.write_text(json.dumps(changed))
        check(changed, lambda: solve(Problem.load(file), method="heft"))
    for part in damaged(content, 2):
        file.write_bytes(part)
        check(part, lambda: Problem.load(file))


def test_schedule_files(problem: Problem, schedule: Schedule, tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    schedule.save(file)
    content = file.read_bytes()
    for changed in mutations(json.loads(content), 3):
        file.write_text(json.dumps(changed))
        check(changed, lambda: simulate(problem, Schedule.load(file)))
        check(changed, lambda: verify(problem, Schedule.load(file)))
    for part in damaged(content, 4):
        file.write_bytes(part)
        check(part, lambda: Schedule.load(file))


def test_topology_files(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    content = files("tvm_sched_runtime.problem").joinpath("presets/v100-hetero.toml").read_bytes()
    for part in damaged(content, 5):
        file.write_bytes(part)
        check(part, lambda: load_topology(file))
    rng, lines = random.Random(6), content.decode().splitlines()
    places = [place for place, line in enumerate(lines) if "=" in line]
    values = [
        "-1", "0", "1e400", "nan", "inf", "'x'", "[]", "{}", "true", "9" * 30, "''", "[[]]", "{x = 1}", "1979-05-27",
    ]  # fmt: skip
    for _ in range(COUNT):
        place = rng.choice(places)
        changed = [*lines[:place], f"{lines[place].partition('=')[0]}= {rng.choice(values)}", *lines[place + 1 :]]
        file.write_text("\n".join(changed))
        check(changed[place], lambda: load_topology(file))


def test_texts_of_shapes_and_constants() -> None:
    rng = random.Random(7)
    for _ in range(COUNT):
        text = "".join(rng.choice("x:=,{}1-9.[]a\"' \u00e9") for _ in range(rng.randint(0, 9)))
        check(text, parse_shapes, [text])
        check(text, parse_constants, [text])


@pytest.mark.parametrize("odd", ODD, ids=map(str, range(len(ODD))))
def test_arguments_of_files_and_schedulers(odd: Any, problem: Problem, schedule: Schedule) -> None:
    for read in (Problem.load, Schedule.load, load_topology, load):
        check(odd, read, odd)
    check(odd, lambda: solve(odd, method="heft"))
    check(odd, lambda: solve(problem, odd, method="heft"))
    check(odd, lambda: solve(problem, method=odd) if odd is not None else None)
    check(odd, lambda: solve(problem, method="heft", options=odd))
    check(odd, lambda: solve(problem, method="heft", budget=odd))
    check(odd, lambda: simulate(odd, schedule))
    check(odd, lambda: simulate(problem, odd))
    check(odd, lambda: verify(odd, schedule))
    check(odd, lambda: verify(problem, odd))
    for name in ("work", "seed", "unknown"):
        check((name, odd), solve, problem, method="anytime", options={"time_limit": 0.02, name: odd})
