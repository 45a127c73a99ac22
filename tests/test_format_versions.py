"""Each file format has one version; another one is refused in words."""

import re
from pathlib import Path

import pytest

from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.files import decode_document, encode_document

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("version", "message"),
    [(4, r"version 4 of f is newer than this tvm_sched reads \(version 3\)"), (2, r"`\$\.version` is 2, expected 3")],
)
def test_one_version_of_a_format_is_read(version, message):
    assert decode_document(encode_document({"a": 1}, "f", 3), "f", 3, "here") == {"a": 1}
    with pytest.raises(FormatError, match=message):
        decode_document(encode_document({"a": 1}, "f", version), "f", 3, "here")


LATER = {"tvm_sched.cost_model": "2"}
"""Formats whose files are made again by a command (`tvm-sched learn`); the others are of the first version."""


def test_formats_of_files_are_of_the_first_version():
    code = [path.read_text() for path in (ROOT / "python").rglob("*.py")]
    found = [each for text in code for each in re.findall(r'^FORMAT, VERSION = "([\w.]+)", (\d+)$', text, re.MULTILINE)]
    assert len(found) > 15
    assert {name: version for name, version in found if version != "1"} == LATER
