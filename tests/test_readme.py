"""What the README says is so: its commands, its Python, its links."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def targets():
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_commands_are_in_the_makefile():
    named = set(
        re.findall(
            r"\bmake ([a-z][a-z-]*)\b", " ".join(re.findall(r"`(make [^`]*)`", (ROOT / "README.md").read_text()))
        )
    )
    named |= set(re.findall(r"^make (\S+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets()
    assert blocks("sh")[0] == "make demo\nmake test\n"


def test_targets_that_are_promised():
    assert {"demo", "test", "bench", "lint", "build", "clean", "help"} <= targets()


def test_ci_calls_make_test():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def shell_commands():
    return [line.split()[1:] for line in "\n".join(blocks("sh")).splitlines() if line.startswith("tvm-sched ")]


@pytest.mark.parametrize("words", shell_commands(), ids=" ".join)
def test_shell_commands_exist_with_their_options(words):
    depth = 2 if words[0] == "topology" else 1
    command = [sys.executable, "-m", "tvm_sched.cli", *words[:depth], "--help"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"(?<!\S){option}(?!\S)", help_text), option


def environment():
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.mark.slow
def test_python_block_runs(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("tvm")
    (code,) = blocks("python")
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"predicted .* s, gap \d+%\n\(1, 1000\) measured \d", ran.stdout)
    assert (tmp_path / "googlenet.so").stat().st_size > 10_000


def anchor(title):
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if section:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert section in {anchor(title) for title in titles}, link


def test_docs_name_files_that_exist():
    for page in PAGES:
        for path in re.findall(r"`((?:python|cpp|docs|examples|tests|benchmarks)/[\w./-]+)`", page.read_text()):
            assert (ROOT / path).exists(), (page, path)
