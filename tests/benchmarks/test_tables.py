"""Tables of results: a row a case, a column a method, the best in bold."""

from _tables import LEAST, MOST, NEAREST_ZERO, Row, direction, tables


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
