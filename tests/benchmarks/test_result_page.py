"""Pages of results: a row a case, a column a method, the best in bold; every page is linked."""

import re
import sys
from pathlib import Path

from _result_page import LEAST, MOST, NEAREST_ZERO, Page, Row, bold, circumstances, direction, pyplot, tables


def lines(rows):
    return [(table.unit, list(table.header), [list(line) for line in table.lines]) for table in tables(rows)]


def test_a_row_a_case_and_a_column_a_method_with_the_peer():
    rows = [
        Row("a", "x", 2.0, "ms", 1.0, "peer"),
        Row("a", "y", 3.0, "ms", 1.0, "peer"),
        Row("b", "x", 4.0, "ms"),
        Row("b", "y", 0.5, "ms", 9.0, "peer"),
    ]
    assert lines(rows) == [("ms", ["case", "x", "y", "peer"], [["a", "2", "3", "**1**"], ["b", "4", "**0.5**", "9"]])]


def test_each_unit_has_a_table_and_its_own_best():
    rows = [
        Row("a", "x", 1.0, "GB/s"), Row("a", "y", 2.0, "GB/s"),
        Row("a", "x", -1.0, "error, %"), Row("a", "y", 2.0, "error, %"),
        Row("a", "x", 1.0, "graphs"), Row("a", "y", 2.0, "graphs"),
    ]  # fmt: skip
    assert [table[2] for table in lines(rows)] == [[["a", "1", "**2**"]], [["a", "**-1**", "2"]], [["a", "1", "2"]]]


def test_equals_are_all_marked_but_not_where_there_is_no_choice():
    rows = [Row("a", m, v, "s") for m, v in (("x", 1.0), ("y", 1.00001), ("z", 2.0))] + [Row("b", "x", 1.0, "s")]
    assert lines(rows)[0][2] == [["a", "**1**", "**1**", "2"], ["b", "1", "–", "–"]]
    assert lines([Row("a", "x", 1.0, "s"), Row("a", "y", 1.0, "s")])[0][2] == [["a", "1", "1"]]


def test_a_peer_of_each_method_is_a_table_of_its_own():
    rows = [Row("a", "x", 1.0, "kg", 5.0, "theirs"), Row("a", "y", 2.0, "kg", 6.0, "theirs")]
    assert lines(rows) == [
        ("kg", ["case", "x", "y"], [["a", "1", "2"]]),
        ("kg, theirs", ["case", "x", "y"], [["a", "5", "6"]]),
    ]


def test_figures_of_one_method_share_a_table():
    rows = [Row("a", "x", 1.0, "ms"), Row("a", "x", 2.0, "MB", note="of 3"), Row("b", "x", 3.0, "MB")]
    assert lines(rows) == [("x", ["case", "ms", "MB"], [["a", "1", "2 (of 3)"], ["b", "–", "3"]])]


def test_few_cases_of_very_many_methods_lie_on_their_side():
    rows = [Row(case, f"m{i}", i + 1.0, "ms") for case in "ab" for i in range(13)]
    ((_, header, body),) = lines(rows)
    assert header == ["method", "a", "b"]
    assert body[0] == ["m0", "**1**", "**1**"]


def test_a_unit_has_one_direction():
    units = [*LEAST, *MOST, *NEAREST_ZERO]
    assert len(set(units)) == len(units)
    assert {direction(unit) for unit in units} == {"least", "most", "zero"}


def test_a_page_is_made_of_text_tables_and_pictures(tmp_path):
    page = Page("Things", tmp_path / "things.md", predicted=True, notes="One.\nTwo.")
    page.text("## Part", "", "Words.")
    page.table(("case", "ms"), [("a", 1), ("b", 2)])
    page.rows([Row("a", "x", 1.0, "ms"), Row("a", "y", 2.0, "ms")], level=3)
    figure, _ = pyplot().subplots()
    page.picture("first", "A picture", figure)
    page.write()
    text = (tmp_path / "things.md").read_text()
    assert text.startswith("# Things\n\nMade by `")
    assert "(see `docs/model.md`), not measured.\n" in text
    assert (
        "\nOne.\nTwo.\n\n## Part\n\nWords.\n\n| case | ms |\n| --- | ---: |\n| a | 1 |\n| b | 2 |\n\n### ms\n" in text
    )
    assert text.endswith("| a | **1** | 2 |\n\n![A picture](things-first.svg)\n")
    assert (tmp_path / "things-first.svg").is_file()


def test_best_cells_are_bold_and_those_without_a_figure_never():
    assert bold(["1 s", "–", "2 s"], [1.0, None, 2.0]) == ["**1 s**", "–", "2 s"]
    assert bold(["1 s", "2 s"], [1.0, 2.0], max) == ["1 s", "**2 s**"]
    assert bold(["–"], [None]) == ["–"]


def test_each_page_of_results_has_a_link():
    root = Path(__file__).parents[2]
    pages = {path.name: path for path in (root / "docs" / "results").glob("*.md")}
    folders = [root / "docs", root / "tests"]
    paths = [*root.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))]
    texts = {path: path.read_text() for path in paths}
    linked = {
        name
        for path, text in texts.items()
        for name in re.findall(r"\]\((?:\S*/)?(\w+\.md)", text)
        if name in pages and pages[name] != path
    }
    assert set(pages) == linked


def test_a_page_names_no_path_of_this_machine(monkeypatch):
    words = [
        "/somewhere/benchmarks/cost_model.py", "--vidur", "/elsewhere/vidur", "--plot=/elsewhere/x/p.svg",
        "--profile",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [*words, "../their/p.json", "--markdown", "docs/p.md"])
    made = "`python benchmarks/cost_model.py --vidur vidur --plot=p.svg --profile p.json --markdown docs/p.md`"
    assert made in circumstances()[0]
