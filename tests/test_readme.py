"""What the README says is so: its targets and links, and those of the documents; `docs/test_snippets` runs its blocks."""

import re
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


def test_llms_txt_names_pages_that_exist():
    text = (ROOT / "docs" / "llms.txt").read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert {link for link in links if not (ROOT / "docs" / link).is_file()} == set()
    tasks = {f"tasks/{page.name}" for page in (ROOT / "docs" / "tasks").glob("*.md")}
    assert tasks <= set(links)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_pictures_are_small_and_shown():
    text = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs").rglob("*.svg"):
        assert picture.name in text, picture
        assert picture.stat().st_size < 100_000, picture


def test_every_page_is_in_the_site():
    named = set(re.findall(r"([\w/]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert named == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
