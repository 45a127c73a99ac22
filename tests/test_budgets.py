"""The tree has no more lines than its budgets allow (`budgets`)."""

import pytest

import budgets
from budgets import ROOT, TABLE, Budget, lowered, read

BUDGETS = read(TABLE.read_text())


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: f"{budget.folder}-{budget.language}")
def test_a_part_has_no_more_lines_than_its_budget(budget):
    assert budget.lines <= budget.limit, (
        "remove as much as you add, or raise the limit in tests/budgets.txt and say why"
    )


def test_each_package_has_a_budget_with_a_reason():
    packages = {f"python/{folder.parent.name}" for folder in ROOT.glob("python/*/__init__.py")}
    assert packages < {budget.folder for budget in BUDGETS}
    assert all(budget.reason for budget in BUDGETS)


def test_limits_only_fall(tmp_path, monkeypatch):
    monkeypatch.setattr(budgets, "ROOT", tmp_path)
    (tmp_path / "part" / "deeper").mkdir(parents=True)
    (tmp_path / "part" / "deeper" / "module.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "part" / "core.cc").write_text("int a;\n")
    high, low, native = (Budget("part", *rest) for rest in (("Python", 9, "x y"), ("Python", 1, "x"), ("C++", 3, "x")))
    assert [each.limit for each in lowered([high, low, native])] == [2, 1, 1]
    assert read(f"{high}\n{low}\n") == [high, low]
