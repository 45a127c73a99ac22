"""``tvm-sched bench``: list, run, score and table of a suite of small instances."""

import json

import pytest

from bench_suite import write_suite

from .conftest import run_command


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "suite").mkdir()
    return write_suite(tmp_path / "suite")


def test_from_a_run_to_a_page(run, suite, tmp_path):
    out, page = tmp_path / "run", tmp_path / "page.md"
    arguments = ("--seconds", 1, "--only", "chain/*", "--only", "random/*", "--methods", "heft,single,tarnawski-dp")
    assert run("bench", "run", suite, "-o", out, *arguments, "--json").json == {
        "folder": str(out), "new": 5, "results": 5,
    }  # fmt: skip
    assert run("bench", "run", suite, "-o", out, *arguments, "--json").json["new"] == 0
    kept = run("bench", "score", suite, *sorted((out / "solutions").iterdir()), "--keep", "--json").json["solutions"]
    assert sum(each["kept"] for each in kept) >= 3
    listed = run("bench", "list", suite, "--json").json["instances"]
    assert {row["instance"]: row["checked_by"] for row in listed}["random/problem-cold"] == "tvm_sched_check"
    methods = run("bench", "table", suite, out, "-o", page, "--json").json["methods"]
    assert {each["method"]: each["over_best"] for each in methods}["tarnawski-dp"] == 1.0
    text = page.read_text()
    assert "| chain/chain-s2 | 13 cost | tarnawski-dp |" in text
    assert str(tmp_path) not in text


def test_solutions_of_others(run, suite, tmp_path):
    arguments = ("--only", "chain/*", "--problems", tmp_path / "problems", "--json")
    (listed,) = run("bench", "list", suite, *arguments).json["instances"]
    instance = json.loads((tmp_path / "problems" / "chain" / "chain-s2.json").read_text())
    assert [node["name"] for node in instance["nodes"]] == list("abcd")
    mine = tmp_path / "mine" / "chain" / "chain-s2.json"
    mine.parent.mkdir(parents=True)
    mine.write_text(
        json.dumps(
            {
                "format": "tvm_sched.partition",
                "version": 1,
                "instance": listed["digest"],
                "stages": [["a", "b"], ["c", "d"]],
            }
        )
    )
    (found,) = run("bench", "score", suite, tmp_path / "mine", "-o", tmp_path / "scored", "--json").json["solutions"]
    assert (found["value"], found["method"], found["error"]) == (13, "mine", "")
    assert run("bench", "table", suite, tmp_path / "scored", "--json").json["methods"][0]["method"] == "mine"
    mine.write_text("{}")
    result = run_command("bench", "score", suite, tmp_path / "mine")
    assert result.status == 1
    assert "expected 'tvm_sched.partition'" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "no-suite"), "no-suite: cannot be read"),
        (("run", "{suite}", "-o", "{tmp}/run", "--only", "x"), "no instance is called 'x'"),
        (("run", "{suite}", "-o", "{tmp}/run", "--seeds", "0"), "seeds is 0; 1 or more"),
        (("score", "{suite}", "{tmp}"), "holds no solution"),
        (("score", "{suite}", "{tmp}/none"), "no such folder"),
        (("table", "{suite}", "{tmp}"), "holds no results"),
    ],
)
def test_what_is_wrong(fails, suite, tmp_path, arguments, message):
    assert message in fails(2, "bench", *(each.format(suite=suite, tmp=tmp_path) for each in arguments))
