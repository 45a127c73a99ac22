"""The benchmark of services on mixed clusters: sentences about the cells where RAMPA is behind."""

from _result_page import Row
from rampa import where_rampa_is_behind


def cell(case, **placed):
    return [
        Row(case, method.replace("_", "-").replace("ncar-", "ncar "), float(n), "placed")
        for method, n in placed.items()
    ]


def test_cells_behind_are_named():
    figures = [
        *cell("a, same", rampa=5, ncar_best=6, ncar_worst=1, first_fit=5),
        *cell("b, same", rampa=5, ncar_best=5, ncar_worst=1, first_fit=8),
        *cell("c, same", rampa=5, first_fit=9),
    ]
    ncar, claim, first_fit = where_rampa_is_behind(figures)
    assert ncar.endswith("on 1 of 2 cells: a, same (5 against 6).")
    assert "contradict" in claim
    assert first_fit.endswith("on 2 of 3 cells: b, same (5 against 8); c, same (5 against 9).")


def test_nothing_contradicts_the_paper_where_ncar_is_not_ahead():
    told = where_rampa_is_behind(cell("a, same", rampa=5, ncar_best=5, first_fit=4))
    assert len(told) == 2
    assert all(sentence.endswith("on 0 of 1 cells.") for sentence in told)
