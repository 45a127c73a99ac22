"""Improvers of `anytime` by name: shares in a text or a file, and improvers that a program registers."""

import pytest

from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime import AnytimeOptions, register_improver
from tvm_sched.schedulers.anytime.improver_registry import IMPROVERS, read_shares
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import FormatError, InputError


@pytest.fixture
def problem():
    return random_problem(5, 30, 3)


def test_shares_of_a_text():
    assert read_shares("local-search:0.25, annealing") == {"local-search": 0.25, "annealing": 1.0}


def test_shares_of_a_file_are_kept_in_the_options(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('format = "tvm_sched.improvers"\nversion = 1\n[improvers]\nlocal-search = 0.25\nannealing = 0.75\n')
    options = AnytimeOptions(improvers=str(path))
    path.unlink()
    assert options.improvers == "local-search:0.25,annealing:0.75"
    assert options.part(2).improvers == options.improvers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("anealing", "there is no improver 'anealing'.*there are annealing, annealing-into-stages"),
        ("annealing:0", "the share of 'annealing' is 0; a number above 0 is allowed"),
        ("annealing:nan", "the share of 'annealing' is nan; a number above 0"),
        ("annealing:much", "the share 'much' is no number; NAME:SHARE,NAME:SHARE or a TOML file is allowed"),
        ("blocks:1,blocks:2", "name 'blocks' twice"),
        ("annealing,", "there is no improver ''"),
    ],
)
def test_shares_that_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        AnytimeOptions(improvers=text)


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[improvers]\nannealing = 1\n")
    with pytest.raises(FormatError, match=r"mine\.toml: field `\$\.format` is None, expected 'tvm_sched.improvers'"):
        AnytimeOptions(improvers=str(path))
    path.write_text('format = "tvm_sched.improvers"\nversion = 1\n[improvers]\n')
    with pytest.raises(InputError, match=r"mine\.toml names none; name one or more"):
        AnytimeOptions(improvers=str(path))


@pytest.mark.parametrize("name", sorted(IMPROVERS.own))
def test_each_improver_runs_alone(problem, name):
    schedule = solve(problem, options={"improvers": name, "work": 0.02})
    notes = schedule.notes["tried"]
    assert set(notes) & {"annealing", "annealing into stages", "blocks", "direct reads", "local search"} <= {
        name.replace("-", " ")
    }


def test_a_registered_improver_takes_its_turn(problem, monkeypatch):
    monkeypatch.setattr(IMPROVERS, "entries", dict(IMPROVERS.entries))
    seen = []

    @register_improver("again")
    class Again:
        name = "again"

        def __init__(self, options):
            self.seed = options.seed

        def step(self, state, budget):
            """Offer the best start once more."""
            seen.append(self.seed)
            start = state.starts()[0]
            state.offer_sequence(start.sequence, start.memory_scale)
            return False

    schedule = solve(problem, options={"improvers": "again:1", "seed": 7, "work": 0.02})
    assert seen == [7]
    assert schedule.notes["tried"]["again"] == schedule.certificate.latency
