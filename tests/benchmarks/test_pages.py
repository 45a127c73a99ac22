"""The command of each results page: its script and options exist, and what it reads is here or named as not here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from _result_page import ELSEWHERE, inputs_of, is_here

ROOT = Path(__file__).parents[2]
COMMANDS = {
    page.stem: made.group(1)
    for page in sorted((ROOT / "docs" / "results").glob("*.md"))
    if (made := re.search(r"^Made by `((?:python|tvm-sched) [^`]*)`", page.read_text(), re.MULTILINE))
}


def test_there_are_commands():
    assert len(COMMANDS) > 60
    assert inputs_of("python benchmarks/x.py --only-page a.json --resume b.json --json c.json m.onnx:x:1") == [
        "a.json", "b.json", "m.onnx",
    ]  # fmt: skip
    assert inputs_of("python benchmarks/x.py --resume b.json --graphs 10 --markdown docs/results/x.md") == []


@pytest.mark.parametrize("page", COMMANDS)
def test_the_script_has_the_options_of_the_page(page):
    command = COMMANDS[page]
    script = ROOT / command.split()[1]
    if command.startswith("tvm-sched bench"):
        script = ROOT / "python" / "tvm_sched_bench" / "cli.py"
    imported = [
        script.parent / f"{name}.py" for name in re.findall(r"^from (\w+) import", script.read_text(), re.MULTILINE)
    ]
    helpers = [*(ROOT / "benchmarks").glob("_*.py"), script, *(file for file in imported if file.is_file())]
    known = "\n".join(helper.read_text() for helper in helpers)
    for option in re.findall(r" (--[a-z][a-z-]*)", command):
        assert f'"{option}"' in known, option


@pytest.mark.parametrize("page", COMMANDS)
def test_what_the_command_reads_is_here_or_the_page_says_that_it_is_not(page):
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text()
    said = " ".join(line for line in text.splitlines() if line.startswith(ELSEWHERE))
    for name in inputs_of(COMMANDS[page]):
        assert is_here(name) or f"`{name}`" in said, f"add a line '{ELSEWHERE}`{name}`, ...' to the page"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["concurrent_kernels", "contention", "open_gaps", "opara_h100"])
def test_a_page_that_takes_seconds_is_made_by_its_command(page, tmp_path):
    made = tmp_path / "page.md"
    words = COMMANDS[page].split()
    words[words.index("--markdown") + 1] = str(made)
    done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept = (ROOT / "docs" / "results" / f"{page}.md").read_text()
    assert _table_lines(made.read_text()) == _table_lines(kept)


def _table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]
