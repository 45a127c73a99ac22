"""Each file of examples/extensions runs as it is, in a process of its own, and docs/extending.md lists it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {file.name: file for file in (ROOT / "examples" / "extensions").glob("*.py")}


def _latencies(text):
    """The latency in ns that each line names."""
    return [int(found) for found in re.findall(r"(\d+) ns", text)]


def _slower_by_launches(text):
    without, with_launches = _latencies(text)
    return with_launches >= without + 5000


def _between_one_device_and_nothing(text):
    single, _, found = _latencies(text)
    return 0 < found <= single


SAID = {
    "earlier_events.py": lambda text: "'earlier-events': " in text,
    "frugal_pass.py": lambda text: text.split() == ["single"],  # a copy takes longer than these kernels
    "launch_costs.py": _slower_by_launches,
    "random_orders.py": _between_one_device_and_nothing,
    "tanh_library.py": lambda text: "['exponentials.tanh']" in text,
}
"""What each file prints, beside its own assertions."""


def test_the_page_lists_them():
    page = (ROOT / "docs" / "extending.md").read_text()
    assert FILES.keys() == SAID.keys()
    assert all(f"| `{name}`: " in page for name in FILES)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", SAID)
def test_it_runs(name):
    if name in ("frugal_pass.py", "tanh_library.py"):
        pytest.importorskip("tvm", exc_type=ImportError)
    done = subprocess.run([sys.executable, FILES[name]], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert SAID[name](done.stdout), done.stdout
