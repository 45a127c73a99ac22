"""Open sizes, with which code for static shapes calculates."""

from __future__ import annotations

from tvm import tirx

from tvm_sched.relax.ir.sizes import EXAMPLES, example_for, example_of, examples_of, product_of_terms, size_of


def test_symbols_of_one_name_are_not_equal():
    one, other = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    assert size_of(one) != size_of(other)
    assert size_of(one // 2) != size_of(other // 2)
    assert size_of(one) * size_of(other) - size_of(other) * size_of(one) == 0
    assert size_of(one // 2 + 3) - size_of(one // 2) == 3


def test_sums_of_symbols_divide_what_they_are_factors_of():
    """Keys of an attention with a past: of one tensor, the sum is a dimension, and neither of its terms is one."""
    n, past, tokens = (size_of(tirx.Var(name, "int64")) for name in ("n", "past", "tokens"))
    keys = past + tokens + 2
    assert (keys * n * 6 + keys * 4).divided(keys) == n * 6 + 4
    assert (keys * keys).divided(keys) == keys
    assert (keys * n + 1).divided(keys) is None
    assert (keys * 3).divided(keys * 2) is None
    assert (past * n).divided(past + tokens) is None
    assert product_of_terms(keys * n * 6, [n, keys]) == [[6, 1, 0]]


def test_an_example_leaves_no_size_below_1():
    n = size_of(tirx.Var("n", "int64"))
    assert example_for([n, n - 40, 3]) == EXAMPLES[1]
    assert example_of(n - 40, EXAMPLES[1]) == EXAMPLES[1] - 40
    assert example_for([n, size_of(n.expression // 320)]) == EXAMPLES[2]  # 1 at 512: no example of what a library does
    assert example_for([5]) == EXAMPLES[0]
    assert example_for([n, -n]) is None


def test_examples_that_go_together_have_each_combination_of_kinds():
    n, m = (size_of(tirx.Var(name, "int64")) for name in "nm")
    both = examples_of([n, m])
    kinds = [{(k > 1) + (k > 15) + (k > 15 and k % 16 > 0) for k in column} for column in zip(*both, strict=True)]
    assert kinds == [{0, 1, 2, 3}] * 2
    assert len(both) == 16
    halves = examples_of([n, size_of((n.expression - 1) // 2)])
    assert halves
    assert all(half == (size - 1) // 2 > 0 for size, half in halves)
