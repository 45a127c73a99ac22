"""Two schedules compared: turns, and what counts where other processes come and go."""

import pytest

from tvm_sched.relax.profiling import paired_runs as comparison
from tvm_sched.relax.profiling.paired_runs import compare, conclude, settle

QUIET, BUSY = True, False


def turn(name, times, calls):
    def some(seconds):
        calls.append((name, seconds))
        return times

    return some


def test_pairs_of_turns_in_changing_order(monkeypatch):
    monkeypatch.setattr(comparison.OtherLoad, "share", lambda self: 0.0)
    calls = []
    first, second = turn("a", [1.0, 1.0, 9.0], calls), turn("b", [2.0, 2.0, 0.1], calls)
    found = compare(first, second, 2.4)
    assert (found.first, found.second, found.faster, found.quiet) == (1.0, 2.0, False, True)
    assert [name for name, _ in calls] == list("abbaab"), "three pairs that agree are enough"
    assert [seconds for _, seconds in calls] == pytest.approx([0.2] * 6)


@pytest.mark.parametrize(
    ("second", "share", "pairs"),
    [
        (1.0, 0.0, 3),
        (0.99, 0.0, 6),  # near the margin
        (0.9, 0.0, 6),
        (0.8, 0.0, 3),  # far faster
        (1.0, 1.0, 6),  # beside others, it lost one
        (0.8, 1.0, 12),
    ],
)
def test_a_comparison_ends_where_it_is_decided(monkeypatch, second, share, pairs):
    monkeypatch.setattr(comparison.OtherLoad, "share", lambda self: share)
    calls = []
    compare(turn("a", [1.0], calls), turn("b", [second], calls), 1.2)
    assert len(calls) == 2 * pairs


def test_a_slow_model_gets_the_fewest_pairs(monkeypatch):
    """Turns that take far longer than planned end the comparison, also where nothing is decided."""
    monkeypatch.setattr(comparison.OtherLoad, "share", lambda self: 1.0)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(comparison.time, "monotonic", lambda: next(clock))
    calls = []
    compare(turn("a", [1.0], calls), turn("b", [0.8], calls), 1.2)
    assert len(calls) == 2 * 3


def test_pairs_beside_others_are_taken_again(monkeypatch):
    shares = iter([0.0, 1.0, 0.0, 1.0, *[0.0] * 40])  # each second one is of a pair: the first two are disturbed
    monkeypatch.setattr(comparison.OtherLoad, "share", lambda self: next(shares))
    calls = []
    found = compare(turn("a", [1.0], calls), turn("b", [0.9], calls), 1.2)
    assert (found.faster, found.quiet) == (True, True)
    assert len(calls) == 2 * (6 + 2)


def test_what_never_gets_quiet_ends(monkeypatch):
    monkeypatch.setattr(comparison.OtherLoad, "share", lambda self: 1.0)
    calls = []
    found = compare(turn("a", [1.0], calls), turn("b", [0.9], calls), 1.2)
    assert (found.faster, found.quiet) == (False, False)
    assert len(calls) == 2 * 12


@pytest.mark.parametrize(
    ("pairs", "faster", "quiet"),
    [
        ([(1.0, 0.99, QUIET)] * 6, False, True),  # by less than can be noise
        ([(1.0, 0.95, QUIET)] * 6, True, True),
        ([(1.0, 0.95, QUIET)] * 3 + [(1.0, 9.0, BUSY)] * 9, True, True),  # three quiet pairs are enough
        ([(1.0, 0.9, BUSY)] * 12, False, False),
        ([(1.0, 0.8, BUSY)] * 12, True, False),
        ([(1.0, 0.5, BUSY)] * 11 + [(1.0, 1.1, BUSY)], False, False),  # once it lost
    ],
)
def test_what_pairs_say(pairs, faster, quiet):
    found = conclude(pairs)
    assert (found.faster, found.quiet) == (faster, quiet)


@pytest.mark.parametrize(
    ("looks", "best"),
    [
        ({}, "b"),
        ({"a": (1.1, 1.1), "c": (1.02, 1.3)}, "b"),
        ({"a": (1.05, 0.8), "c": (1.2, 1.2)}, "a"),
        ({"a": (1.03, 1.0)}, "a"),  # faster than what is held by 1.5 % alone
        ({"a": (1.1, 1.1), "c": (1.02, 0.95)}, "b"),  # by less than the margin
        ({"a": (1.1, 1.1), "c": (1.02, 0.8)}, "c"),
        ({"a": (0.91, 0.91), "c": (0.9, 0.9)}, "a"),  # not faster than what is held
    ],
)
def test_two_looks_count_alike(looks, best):
    assert settle("b", "a", looks) == best
