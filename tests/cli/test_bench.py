"""``tvm-sched bench``: list, run, score and table of a suite of small instances."""

import gzip
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
    arguments = ("--time-limit", 1, "--only", "chain/*", "--only", "random/*", "--methods", "heft,single,tarnawski-dp")
    assert run("bench", "run", suite, "-o", out, *arguments, "--json").json == {
        "folder": str(out), "new": 5, "results": 5, "files": {"results": str(out)},
    }  # fmt: skip
    assert run("bench", "run", suite, "-o", out, *arguments, "--json").json["new"] == 0
    kept = run("bench", "score", suite, *sorted((out / "solutions").iterdir()), "--keep", "--json").json["solutions"]
    assert sum(each["kept"] for each in kept) >= 3
    listed = run("bench", "list", suite, "--json").json["instances"]
    assert {row["instance"]: row["checked_by"] for row in listed}["random/problem-cold"] == "tvm_sched_check"
    methods = run("bench", "table", suite, out, "-o", page, "--json").json["methods"]
    assert {each["method"]: each["over_best"] for each in methods}["tarnawski-dp"] == 1.0
    text = page.read_text()
    assert "| chain | 1 | 1 |" in text, "the best known solutions by family"
    assert str(tmp_path) not in text


def test_solutions_of_others(run, suite, tmp_path):
    arguments = ("--only", "chain/*", "--output", tmp_path / "problems", "--json")
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


@pytest.fixture
def kept(run, suite, tmp_path):
    """The suite with best known solutions."""
    arguments = ("--time-limit", 1, "--only", "chain/*", "--only", "random/*", "--methods", "heft,tarnawski-dp")
    run("bench", "run", suite, "-o", tmp_path / "run", *arguments)
    run("bench", "score", suite, *sorted((tmp_path / "run" / "solutions").iterdir()), "--keep")
    return suite


def change_best(suite, name, **fields):
    """Have best.json say something else of an instance."""
    best = json.loads((suite / "best.json").read_text())
    best["instances"][name] |= fields
    (suite / "best.json").write_text(json.dumps(best))
    return best["instances"][name]


def test_check_says_what_is_proved(run, kept):
    found = run("bench", "check", kept, "--json").json
    assert found["unproved"] == []
    assert found["checked"]["random/problem-cold"] == "tvm_sched_check"
    assert found["checked"]["random/problem-warm"] == "tvm_sched_check"
    assert "tvm_sched_check.partitions" in run("bench", "check", kept).stdout


def test_check_of_a_bound_that_claims_more_than_its_evidence_proves(run, kept):
    known = change_best(kept, "random/problem-cold")
    change_best(kept, "random/problem-cold", bound=known["bound"] + 1)
    result = run_command("bench", "check", kept)
    assert result.status == 1
    said = " ".join(result.stdout.split())
    assert f"bound says {known['bound'] + 1}, and its evidence proves {known['bound']} only" in said
    listed = run("bench", "list", kept, "--json").json["instances"]
    assert {row["instance"]: row["checked_by"] for row in listed}["random/problem-cold"] == (
        "tvm_sched_check, latency alone"
    )
    assert run_command("bench", "check", kept, "--only", "chain/*").status == 0


def test_check_of_a_bound_below_its_evidence(run, kept):
    """It is proved all the same."""
    known = change_best(kept, "random/problem-cold")
    change_best(kept, "random/problem-cold", bound=known["bound"] - 1)
    found = run("bench", "check", kept, "--json").json
    assert (found["checked"]["random/problem-cold"], found["unproved"]) == ("tvm_sched_check", [])


def test_check_of_a_solution_that_is_wrong(fails, kept):
    change_best(kept, "chain/chain-s2", value=1.0)
    assert "best.json says 1" in fails(2, "bench", "check", kept)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["random/problem-cold", "chain/chain-s2"])
@pytest.mark.parametrize("what", ["solution", "evidence"])
def test_check_names_the_file_that_is_refused(fails, run, kept, name, what):
    run("bench", "prove", kept, "--iterations", 100)  # the chain has evidence from here on
    file = kept / "best" / f"{name}.{what}.json.gz"
    file.write_bytes(gzip.compress(b"{}"))
    said = fails(2, "bench", "check", kept)
    assert str(file) in said if what == "evidence" else name in said
    assert "refused by tvm_sched_check" in said or what == "solution"


@pytest.mark.thorough
def test_prove_goes_on_where_something_is_refused(run, kept):
    """Evidence that is no weaker replaces it; what nothing replaces stays, is named, and makes the status 1."""
    run("bench", "prove", kept, "--iterations", 100)
    cold, chain = (kept / "best" / f"{name}.evidence.json.gz" for name in ("random/problem-cold", "chain/chain-s2"))
    known, good = change_best(kept, "random/problem-cold"), cold.read_bytes()
    for content in (b"no gzip file", gzip.compress(b"{}")):
        cold.write_bytes(content)
        done = run("bench", "prove", kept, "--iterations", 100, "--json")
        assert list(done.json["changed"]) == ["random/problem-cold"]
        assert done.json["refused"] == {}
        assert f"{cold}: " in done.stderr
        assert "; replaced" in done.stderr
        assert cold.read_bytes() == good
    change_best(kept, "random/problem-cold", bound=1.5 * known["bound"])
    cold.write_bytes(gzip.compress(b"{}"))
    chain.unlink()
    left = run_command("bench", "prove", kept, "--iterations", 100, "--json")
    assert left.status == 1
    assert list(left.json["changed"]) == ["chain/chain-s2"]
    assert chain.exists()
    assert str(cold) in left.json["refused"]["random/problem-cold"]
    assert change_best(kept, "random/problem-cold")["bound"] == 1.5 * known["bound"]


def test_prove_goes_on_where_a_solution_is_refused(run, kept):
    solution = kept / "best" / "chain" / "chain-s2.solution.json.gz"
    solution.write_bytes(gzip.compress(b"{}"))
    change_best(kept, "random/problem-cold", bound=1, bound_by="nobody")
    found = run_command("bench", "prove", kept, "--iterations", 100, "--json")
    assert found.status == 1
    assert list(found.json["changed"]) == ["random/problem-cold"]
    assert str(solution) in found.json["refused"]["chain/chain-s2"]


def test_bounds_without_evidence_are_kept_where_they_say_more_by_far(run, kept, tmp_path):
    name, evidence = "random/problem-cold", kept / "best" / "random" / "problem-cold.evidence.json.gz"
    bound = change_best(kept, name)["bound"]
    for part, stays in ((0.9995, True), (0.9, False)):
        change_best(kept, name, bound=part * bound)
        run("bench", "table", kept, tmp_path / "run", "--keep-bounds")
        assert change_best(kept, name)["bound"] == (part * bound if stays else bound)
        assert evidence.exists() == stays


@pytest.mark.thorough
def test_prove_keeps_evidence(run, kept):
    """A bound without evidence, and one that is too weak, give way to what is proved; others stay."""
    change_best(kept, "chain/chain-s2", bound=10.0, bound_by="nobody")
    shown = run("bench", "prove", kept, "--iterations", 100, "--json").json["changed"]
    assert list(shown) == ["chain/chain-s2"]
    assert 10 < shown["chain/chain-s2"]["bound"] <= 13
    files = {name: kept / "best" / "chain" / f"chain-s2.{name}.json.gz" for name in ("solution", "evidence")}
    for name, file in files.items():
        files[name] = file.with_name(f"{name}.json")
        files[name].write_bytes(gzip.decompress(file.read_bytes()))
    run("bench", "list", kept, "--only", "chain/*", "--output", kept / "problems")
    figures = run("check", kept / "problems" / "chain" / "chain-s2.json", *files.values(), "--json").json
    assert 10 < figures["claimed"] <= figures["proved"] <= figures["cost"] == 13
    assert run("bench", "check", kept, "--json").json["checked"]["chain/chain-s2"] == "tvm_sched_check.partitions"
    assert run("bench", "prove", kept, "--iterations", 100, "--json").json["changed"] == {}


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


def test_regal_shows_the_paper_beside(run, tmp_path):
    (tmp_path / "one.pbtxt").write_text("node { compute_cost: 5 }")
    found = run("bench", "regal", tmp_path, "--stages", "64", "--time-limit", 1, "--json").json
    assert found["graphs"] == 1
    first = {"bound": "simple", "stages": 64, "mean": 1.0, "paper": 0.3336}
    assert found["figures"][0] == first


def test_regal_names_what_is_wrong(fails, tmp_path):
    assert "holds no graphs" in fails(2, "bench", "regal", tmp_path)
    (tmp_path / "one.pbtxt").write_text("node { }")
    assert "work 0" in fails(2, "bench", "regal", tmp_path)
    assert "none of the paper's" in fails(2, "bench", "regal", tmp_path, "--stages", "3")
