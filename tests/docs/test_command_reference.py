"""docs/commands.md, docs/llms.txt and the man pages say what `--help` says."""

import importlib.util
import re
import shutil
import subprocess

import pytest

from docs.snippets import ROOT


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("command_reference", ROOT / "docs" / "command_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def commands(reference):
    return reference.all_commands()


def test_the_files_are_as_the_commands_are(reference, commands):
    how = "run python docs/command_reference.py"
    assert (ROOT / "docs" / "commands.md").read_text() == reference.markdown(commands), how
    text = (ROOT / "docs" / "llms.txt").read_text()
    assert text == reference.llms(commands, text), how


def test_every_command_has_a_summary_and_every_option_a_meaning(commands):
    names = [each.name for each in commands]
    assert names[:5] == ["auto", "inspect", "schedule", "compile", "run"]
    assert len(set(names)) == len(names)
    for each in commands:
        assert each.panel, each.name
        assert each.summary.endswith("."), each.name
        for flag, meaning in (*each.arguments, *each.options):
            assert meaning or flag.startswith("--help"), (each.name, flag)


def test_man_pages_are_read_without_a_warning(reference, commands, tmp_path):
    pages = reference.man_pages(commands)
    assert set(pages) == {"tvm-sched.1"} | {f"tvm-sched-{each.name.replace(' ', '-')}.1" for each in commands}
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: apt-get install groff")
    for name in ("tvm-sched.1", "tvm-sched-sweep.1", "tvm-sched-compile.1"):
        (tmp_path / name).write_text(pages[name])
        read = subprocess.run(
            ["groff", "-man", "-ww", "-Tascii", "-P-c", name], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert read.stderr == ""
        plain = re.sub(".\b", "", read.stdout)  # bold letters are printed twice
        assert all(f"\n{heading}\n" in plain for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS"))
