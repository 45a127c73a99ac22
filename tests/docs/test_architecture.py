"""`docs/architecture.md` names files and functions that exist, and every package of `tvm_sched_runtime` and `tvm_sched`."""

import re

import pytest

from docs.snippets import ROOT

PACKAGE, RUNTIME = (ROOT / "python" / name for name in ("tvm_sched", "tvm_sched_runtime"))
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def section(title):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", TEXT, re.DOTALL | re.MULTILINE)[1]


def rows(title):
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def path_of(name):
    """The file or folder that the page names: from the root of the source tree, or from a package's folder."""
    return next((place / name for place in (ROOT, PACKAGE) if (place / name).exists()), RUNTIME / name)


def is_path(name):
    return not name.startswith("tvm_sched/") and ("/" in name or re.search(r"\.(py|cc|h)$", name))  # those are targets


@pytest.mark.parametrize("name", sorted(filter(is_path, set(re.findall(r"`([\w./-]+)`", TEXT)))))
def test_a_path_exists(name):
    assert path_of(name).exists()


def test_every_package_is_named():
    table = rows("Packages of `tvm_sched_runtime` and `tvm_sched`")
    named = {name.rstrip("/") for row in table for name in re.findall(r"`([\w/]+)`", row[0])}
    assert {folder.parent.name for place in (PACKAGE, RUNTIME) for folder in place.glob("*/__init__.py")} <= named
    assert all(path_of(name).is_dir() or path_of(f"{name}.py").is_file() for name in named)


def test_every_folder_of_the_compiler_is_named():
    named = {name for row in rows("The compiler") for name in re.findall(r"^`relax/(\w+)`$", row[0])}
    assert named == {folder.parent.name for folder in (PACKAGE / "relax").glob("*/__init__.py")}


@pytest.mark.parametrize("row", rows("Where to find things"), ids=lambda row: row[0])
def test_an_idea_stands_where_the_page_says(row):
    _, files, names = row
    text = "".join(path_of(name).read_text() for name in re.findall(r"`([^`]+)`", files))
    for name in re.findall(r"`([^`]+)`", names):
        assert re.search(rf"\b{re.split(r'[.:]+', name)[-1]}\b", text), name
