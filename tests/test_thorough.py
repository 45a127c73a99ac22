"""Which cases `make test`, `.ci/run` and `make test-thorough` run."""

import zlib

import pytest

import thorough

NAMES = [f"test_a.py::test_b[{n}]" for n in range(400)]


def chosen(monkeypatch, value):
    part, parts = thorough.part_of(value)
    monkeypatch.setattr(thorough, "PART", part)
    monkeypatch.setattr(thorough, "PARTS", parts)
    return [name for name in NAMES if thorough.repeated(name)]


def test_nothing_or_all(monkeypatch):
    assert chosen(monkeypatch, "") == chosen(monkeypatch, "0") == []
    assert chosen(monkeypatch, "1") == NAMES


def test_the_parts_are_disjoint_and_together_everything(monkeypatch):
    parts = [chosen(monkeypatch, f"{part}/8") for part in range(8)]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    assert all(30 < len(part) < 70 for part in parts)


def test_examples_of_a_file_of_this_part(monkeypatch):
    part = zlib.crc32(b"test_thorough.py") % 8
    chosen(monkeypatch, f"{part}/8")
    assert thorough.examples(31) == 16
    assert thorough.repeated_here()
    chosen(monkeypatch, f"{(part + 1) % 8}/8")
    assert thorough.examples(96) == 6
    assert thorough.examples(9) == 4
    assert thorough.examples(3) == 3
    assert not thorough.repeated_here()
    chosen(monkeypatch, "1")
    assert thorough.examples(31) == 31


@pytest.mark.parametrize("value", ["8/8", "-1/8", "1/", "/8", "all", "2"])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="TVM_SCHED_THOROUGH"):
        thorough.part_of(value)
