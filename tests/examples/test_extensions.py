"""Each file of examples/extensions runs as it is, in a process of its own, and docs/extending.md lists it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {file.name: file for file in (ROOT / "examples" / "extensions").glob("*.py")}
SAID = {
    "earlier_events.py": "'earlier-events': ",
    "frugal_pass.py": "single",
    "launch_costs.py": "roofline-and-launches ",
    "random_orders.py": "random-orders ",
    "tanh_library.py": "['exponentials.tanh']",
}


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
    assert SAID[name] in done.stdout
