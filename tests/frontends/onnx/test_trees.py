"""Ensembles of trees and the other classifiers of ai.onnx.ml, beside ONNX Runtime or the standard's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from tvm_frontends import load_model
from tvm_frontends.onnx.operators.nodes import Node
from tvm_sched.relax import compile as compile_model
from tvm_sched_runtime.errors import InputError

from .trees_cases import check, make

ORDERS = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
ROWS, FEATURES, TREES = 9, 4, 3


def features(dtype: str = "float32", missing: bool = True) -> Any:
    """Whole numbers, so that comparisons for equality hold now and then, and NaN."""
    x = np.random.default_rng(1).integers(-2, 3, (ROWS, FEATURES)).astype(dtype)
    if missing:
        x[0, 1] = x[2, 2] = x[3, 0] = np.nan
    return x


def trees(
    what: str, ids: tuple[int, ...], modes: tuple[str, ...] = ORDERS[:1], positive: bool = False
) -> dict[str, Any]:
    """Attributes of complete trees of three inner nodes and four leaves."""
    rng = np.random.default_rng(0)
    nodes = [(tree, number, number >= 3) for tree in range(TREES) for number in range(7)]
    weights = rng.standard_normal((len(nodes), len(ids)))
    entries = [(tree, n, i, w) for (tree, n, leaf), row in zip(nodes, weights, strict=True) if leaf
               for i, w in zip(ids, np.abs(row) / TREES if positive else row, strict=True)]  # fmt: skip
    return {
        "nodes_treeids": [tree for tree, _, _ in nodes],
        "nodes_nodeids": [n for _, n, _ in nodes],
        "nodes_featureids": [0 if leaf else int(rng.integers(FEATURES)) for *_, leaf in nodes],
        "nodes_modes": ["LEAF" if leaf else str(rng.choice(modes)) for *_, leaf in nodes],
        "nodes_values": [0.0 if leaf else float(rng.integers(-1, 2)) for *_, leaf in nodes],
        "nodes_truenodeids": [0 if leaf else 2 * n + 1 for _, n, leaf in nodes],
        "nodes_falsenodeids": [0 if leaf else 2 * n + 2 for _, n, leaf in nodes],
        "nodes_missing_value_tracks_true": [0 if leaf else int(rng.integers(2)) for *_, leaf in nodes],
        f"{what}_treeids": [entry[0] for entry in entries],
        f"{what}_nodeids": [entry[1] for entry in entries],
        f"{what}_ids": [entry[2] for entry in entries],
        f"{what}_weights": [float(entry[3]) for entry in entries],
    }


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("ids", [(0,), (0, 1)])
def test_regressor(aggregate: str, ids: tuple[int, ...]) -> None:
    x, targets = features(), max(ids) + 1
    base = [0.5, -1.0, 2.0][:targets]
    check(make("TreeEnsembleRegressor", x, [TensorProto.FLOAT], n_targets=targets, aggregate_function=aggregate,
               base_values=base, **trees("target", ids)), x)  # fmt: skip


def test_all_comparisons_and_whole_numbers() -> None:
    """Rows with NaN follow ``nodes_missing_value_tracks_true``."""
    x = features()
    check(make("TreeEnsembleRegressor", x, [TensorProto.FLOAT], n_targets=1, **trees("target", (0,), ORDERS)), x)
    whole = features("int64", missing=False)
    found, same = (
        compile_model(make("TreeEnsembleRegressor", v, [TensorProto.FLOAT], n_targets=1, **trees("target", (0,))), "cpu1",
                      "single").run(v) for v in (whole, whole.astype("float32"))
    )  # fmt: skip
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize("kind", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_classifier(kind: str) -> None:
    x = features()
    two = [TensorProto.INT64, TensorProto.FLOAT]
    common = {"classlabels_int64s": [7, 3, 5], "base_values": [0.5, 0.0, -0.5], "post_transform": kind}
    check(make("TreeEnsembleClassifier", x, two, **common, **trees("class", (0, 1, 2))), x)


@pytest.mark.parametrize("kind", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier_of_one_score(kind: str, positive: bool) -> None:
    x = features()
    two = [TensorProto.INT64, TensorProto.FLOAT]
    common = {"classlabels_int64s": [4, 9], "base_values": [0.25], "post_transform": kind}
    check(make("TreeEnsembleClassifier", x, two, **common, **trees("class", (0,), positive=positive)), x)


@pytest.mark.parametrize(("labels", "ids"), [([4, 9], (0, 1)), ([4, 9, 2], (1, 2)), ([4, 9, 2], (0, 2))])
@pytest.mark.parametrize("positive", [False, True])
def test_classes_that_runtimes_choose_differently_are_the_references(labels, ids, positive) -> None:
    x = features()
    two = [TensorProto.INT64, TensorProto.FLOAT]
    attributes = {"classlabels_int64s": labels, "post_transform": "NONE", **trees("class", ids, positive=positive)}
    check(make("TreeEnsembleClassifier", x, two, **attributes), x, reference=True)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"classlabels_strings": ["a", "b"]}, "names of text"),
        ({"classlabels_int64s": [4, 9], "post_transform": "SOFTMAX"}, "post_transform is SOFTMAX"),
        ({"classlabels_int64s": [4, 9], "base_values": [0.5, 0.5]}, "2 base values for 2 classes"),
        ({"classlabels_int64s": [4]}, "it has 1 classes"),
        ({"classlabels_int64s": [4, 9, 2]}, r"leaves refer to the classes \[0\]"),
    ],
)
def test_what_nothing_defines_is_refused(attributes: dict[str, Any], words: str) -> None:
    x = features()
    outputs = [TensorProto.STRING if "classlabels_strings" in attributes else TensorProto.INT64, TensorProto.FLOAT]
    model = make("TreeEnsembleClassifier", x, outputs, **attributes, **trees("class", (0,)))
    with pytest.raises(InputError, match=rf"TreeEnsembleClassifier \(node 'n'\).*{words}"):
        compile_model(model, "cpu1", "single")


def ensemble(**changes: Any) -> dict[str, Any]:
    """Attributes of TreeEnsemble: a tree whose root asks for a member of {1, 2} and whose other node compares."""
    tensors = {"nodes_splits": [0, 0.5], "leaf_weights": [1, 2, 4], "membership_values": [1, 2, np.nan]}
    return {
        **{name: numpy_helper.from_array(np.array(value, "float32")) for name, value in tensors.items()},
        "nodes_modes": numpy_helper.from_array(np.array([6, 0], "uint8")),
        "nodes_featureids": [0, 1], "tree_roots": [0], "n_targets": 2, "leaf_targetids": [0, 1, 0],
        "nodes_truenodeids": [0, 1], "nodes_trueleafs": [1, 1],
        "nodes_falsenodeids": [1, 2], "nodes_falseleafs": [0, 1], **changes,
    }  # fmt: skip


def test_members_of_sets() -> None:
    x = features(missing=False)
    check(make("TreeEnsemble", x, [TensorProto.FLOAT], 5, **ensemble()), x, reference=True)


def test_broken_trees() -> None:
    x = features()
    for changes, words in (
        ({"nodes_falsenodeids": [0, 2]}, "form a cycle"),
        ({"nodes_truenodeids": [0, 9]}, "does not exist"),
        ({"nodes_featureids": [0, 7]}, "feature 7"),
        ({"leaf_targetids": [0, 5, 0]}, "target 5"),
    ):
        with pytest.raises(InputError, match=words):
            compile_model(make("TreeEnsemble", x, [TensorProto.FLOAT], 5, **ensemble(**changes)), "cpu1", "single")


def test_rows_on_several_threads() -> None:
    """As many rows as make the loop over them parallel."""
    x = np.random.default_rng(2).integers(-2, 3, (20_000, FEATURES)).astype("float32")
    check(make("TreeEnsembleRegressor", x, [TensorProto.FLOAT], n_targets=1, **trees("target", (0,))), x)


def test_nodes_and_leaves_in_any_order() -> None:
    x, rng = features(), np.random.default_rng(3)
    given = trees("class", (0, 1, 2), ORDERS)
    found = []
    for shuffled in (False, True):
        for kind in ("nodes_", "class_"):
            order = rng.permutation(len(given[f"{kind}treeids"]))
            given |= {k: [v[at] for at in order] for k, v in given.items() if shuffled and k.startswith(kind)}
        model = make(
            "TreeEnsembleClassifier", x, [TensorProto.INT64, TensorProto.FLOAT], classlabels_int64s=[7, 3, 5], **given
        )
        found.append(compile_model(model, "cpu1", "single").run(x))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)  # trees are summed in another order


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes_truenodeids": list(range(1, 22))}, r"there is no node \(1, 8\)"),
        ({"target_nodeids": [-9] * 12}, r"there is no node \(0, -9\)"),
        ({"nodes_falsenodeids": [0] * 21}, "each needs one node that no other leads to"),
        ({"nodes_treeids": [0] * 20}, "differ in length"),
        ({"target_weights": [0.0]}, "differ in length"),
    ],
)
def test_broken_trees_of_regressors(changes: dict[str, Any], words: str) -> None:
    x = features()
    with pytest.raises(InputError, match=words):
        compile_model(
            make("TreeEnsembleRegressor", x, [TensorProto.FLOAT], **{**trees("target", (0,)), **changes}), "cpu1"
        )


@pytest.mark.parametrize("count", [3, 300])
def test_attributes_are_read_once_however_many_nodes_there_are(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forest of 4.8 million nodes read two attributes, whole, for each of its nodes."""
    monkeypatch.setattr(f"{__name__}.TREES", count)
    reads: list[str] = []
    attribute = Node.attribute
    monkeypatch.setattr(
        Node, "attribute", lambda node, name, *default: reads.append(name) or attribute(node, name, *default)
    )
    load_model(make("TreeEnsembleRegressor", features(), [TensorProto.FLOAT], n_targets=1, **trees("target", (0,))))
    assert {"nodes_falsenodeids", "nodes_truenodeids"} <= set(reads)
    assert len(reads) == len(set(reads))
