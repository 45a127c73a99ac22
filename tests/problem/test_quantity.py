"""Numbers with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.problem.quantity import UNITS, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("32 GiB", "bytes", 32 << 30),
        ("1.5KiB", "bytes", 1536),
        ("32 GB", "bytes", 32_000_000_000),
        (7, "bytes", 7),
        ("16 GB/s", "bandwidth", 16e9),
        ("1 GiB/s", "bandwidth", float(1 << 30)),
        ("15.7 TFLOP/s", "rate", 15.7e12),
        ("15.7 TFLOPS", "rate", 15.7e12),
        ("5 us", "time", 5e-6),
        ("5 µs", "time", 5e-6),
        ("1e3 ns", "time", 1e-6),
        (0.25, "time", 0.25),
    ],
)
def test_values(text, kind, value):
    assert parse_quantity(text, kind, "here") == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("16 GB", "bandwidth"), ("16 Gb/s", "bandwidth"), ("five us", "time"), ("5", "time"), ("", "bytes"),
        ("1 s", "bytes"),
    ],
)  # fmt: skip
def test_wrong_unit_says_what_is_allowed(text, kind):
    with pytest.raises(FormatError) as error:
        parse_quantity(text, kind, "file.toml: `$.x`")
    assert "file.toml: `$.x`" in str(error.value)
    assert repr(text) in str(error.value)
    assert all(unit in str(error.value) for unit in UNITS[kind])


@given(st.floats(1e-9, 1e18), st.sampled_from(["bandwidth", "rate", "time"]))
def test_written_values_read_back_exactly(value, kind):
    assert parse_quantity(format_quantity(value, kind), kind, "here") == value


@given(st.integers(0, 1 << 60))
def test_written_bytes_read_back_exactly(value):
    assert parse_quantity(format_quantity(value, "bytes"), "bytes", "here") == value


def test_values_are_written_as_people_do():
    assert format_quantity(900e9, "bandwidth") == "900 GB/s"
    assert format_quantity(141_000_000_000, "bytes") == "141 GB"
    assert format_quantity(16 << 30, "bytes") == "16 GiB"
    assert format_quantity(5e-6, "time") == "5 us"
