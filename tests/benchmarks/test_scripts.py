"""All benchmarks start, and those of `make bench` take the options that it gives them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELPS = """
import contextlib, importlib, io, json, sys
found = {}
for name in sys.argv[1:]:
    script, text = importlib.import_module(name), io.StringIO()
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        script.main()
    found[name] = text.getvalue()
print(json.dumps(found))
"""


@pytest.mark.parametrize("folder", ["benchmarks", "distributions/frontends/benchmarks"])
@pytest.mark.thorough
def test_make_bench_can_start_each_of_its_scripts(folder):
    left_out = re.search(r"filter-out ([^,]*),", (ROOT / "Makefile").read_text()).group(1)
    names = [file.stem for file in sorted((ROOT / folder).glob("[a-z]*.py"))]
    # In a process of its own: some set variables of the environment when they are imported.
    done = subprocess.run(
        [sys.executable, "-c", HELPS, *names], cwd=ROOT / folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, text in json.loads(done.stdout).items():
        assert "usage:" in text, name
        if f"{folder}/{name}.py" not in left_out.split():
            assert "--json" in text, name
            assert "--quick" in text, name
