"""Files of schedules and timelines: round trips, and what is said of wrong ones."""

import msgspec
import pytest
from hypothesis import given, settings

from strategies import scheduled_problems
from thorough import examples
from tvm_sched_runtime.errors import FormatError, ScheduleError
from tvm_sched_runtime.schedule import Certificate, Event, Schedule, Timeline, Transfer, simulate

SCHEDULE = b"""{
 "format": "tvm_sched.schedule", "version": 1, "problem": "0123456789abcdef",
 "placements": [{"operator": "p", "device": "d0"}],
 "transfers": [{"kind": "load", "device": "d0", "tensor": "w"}]
}"""
TIMELINE = b"""{
 "format": "tvm_sched.timeline", "version": 1, "source": "simulated", "problem": "0", "latency_ns": 5,
 "events": [{"kind": "kernel", "name": "p", "lanes": ["d0/0"], "start_ns": 0, "end_ns": 5}]
}"""


@settings(max_examples=examples(50), deadline=None)
@given(scheduled_problems())
def test_round_trips(pair):
    problem, schedule = pair
    schedule = msgspec.structs.replace(schedule, certificate=Certificate(7, 5, "critical path"), seconds=0.25)
    assert Schedule.from_json(schedule.to_json()) == schedule
    timeline = simulate(problem, schedule)
    assert Timeline.from_json(timeline.to_json()) == timeline


def test_through_files(tmp_path):
    schedule, timeline = Schedule.from_json(SCHEDULE), Timeline.from_json(TIMELINE)
    schedule.save(tmp_path / "s.json")
    timeline.save(tmp_path / "t.json")
    assert Schedule.load(tmp_path / "s.json") == schedule
    assert Timeline.load(tmp_path / "t.json") == timeline
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "t.json"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"version": 1', b'"version": 3', r"version 3 of tvm_sched.schedule is newer .* \(version 1\)"),
        (b'"version": 1', b'"version": "1"', r"`\$.version` is '1'"),
        (b'"version": 1', b'"version": 0', r"`\$.version` is 0, expected 1"),
        (b"tvm_sched.schedule", b"tvm_sched.timeline", r"`\$.format` is 'tvm_sched.timeline', expected"),
        (b'"device": "d0"}', b'"device": 3}', r"Expected `str`, got `int` - at `\$.placements\[0\].device`"),
        (b'"operator"', b'"operater"', r"`\$.placements\[0\]`"),
        (b'"load"', b'"fetch"', r"Invalid enum value 'fetch' - at `\$.transfers\[0\].kind`"),
        (b'"tensor": "w"', b'"operator": "p"', "a load has the fields kind, device, tensor"),
        (b'"problem": "0123456789abcdef",', b"", "missing required field `problem`"),
        (b"]\n}", b"]", "not a JSON document"),
    ],
)
def test_a_wrong_schedule_names_the_field(old, new, message):
    assert old in SCHEDULE
    with pytest.raises((FormatError, ScheduleError), match=message) as error:
        Schedule.from_json(SCHEDULE.replace(old, new, 1), "my.json")
    assert str(error.value).startswith("my.json: ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"version": 1', b'"version": 9', "version 9 of tvm_sched.timeline is newer"),
        (b'"start_ns": 0', b'"start_ns": 6', r"event 'p' runs from 6 to 5 ns.* at `\$.events\[0\]`"),
        (b'"start_ns": 0', b'"start_ns": 0.5', r"`\$.events\[0\].start_ns`"),
        (b'"simulated"', b'"guessed"', r"`\$.source`"),
    ],
)
def test_a_wrong_timeline_names_the_field(old, new, message):
    assert old in TIMELINE
    with pytest.raises(FormatError, match=message):
        Timeline.from_json(TIMELINE.replace(old, new, 1))


@pytest.mark.parametrize("kind", [Schedule, Timeline])
def test_half_written_and_missing_files(kind, tmp_path):
    whole = {Schedule: SCHEDULE, Timeline: TIMELINE}[kind]
    for end in range(0, len(whole) - 1, 7):
        (tmp_path / "half.json").write_bytes(whole[:end])
        with pytest.raises(FormatError, match=r"half.json: not a JSON document"):
            kind.load(tmp_path / "half.json")
    with pytest.raises(FormatError, match=r"nowhere.json: cannot be read"):
        kind.load(tmp_path / "nowhere.json")


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    schedule = Schedule.from_json(SCHEDULE)
    schedule.save(tmp_path / "s.json")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(FormatError, match="cannot be written"):
        msgspec.structs.replace(schedule, problem="new").save(tmp_path / "s.json")
    monkeypatch.undo()
    assert Schedule.load(tmp_path / "s.json") == schedule
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_fields_that_do_not_belong_to_a_transfer():
    with pytest.raises(ScheduleError, match="a copy has the fields kind, device, tensor, source; source is wrong"):
        Transfer("copy", "d0", "w")
    with pytest.raises(FormatError, match="0 <= start <= end"):
        Event("kernel", "p", ("d0/0",), -1, 5)
