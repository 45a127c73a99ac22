"""Converters of decision tree ensembles (LightGBM, XGBoost, scikit-learn) to the kernel of `kernels.trees`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...kernels.trees import AVERAGE, EQ, MAX, MEMBER, MIN, SUM, Forest, forest_kernel
from ...tensor_types import dtype_of
from .nodes import Node, converter
from .scores import DOMAIN, POST_TRANSFORMS, class_labels, one_class, post_transform

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_AGGREGATES = {"AVERAGE": AVERAGE, "SUM": SUM, "MIN": MIN, "MAX": MAX}
_NEUTRAL = {MIN: np.inf, MAX: -np.inf}


@converter("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(node: Node) -> relax.Expr:
    """Convert TreeEnsemble: nodes and leaves in separate tables, one target for each leaf."""
    x = node.input(0)
    scores = _walk(node, _forest_of_nodes(node, _kind(x)))
    scores = post_transform(node, scores, POST_TRANSFORMS[node.attribute("post_transform", 0)])
    return relax.op.astype(scores, dtype_of(x))


@converter("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(node: Node) -> relax.Expr:
    """Convert TreeEnsembleRegressor: nodes with tree numbers, and several targets for each leaf."""
    aggregate = _AGGREGATES[node.attribute("aggregate_function", "SUM")]
    forest = _forest_of_trees(node, "target", int(node.attribute("n_targets", 1)), aggregate)
    scores = _add_base(node, _walk(node, forest), forest)
    return relax.op.astype(post_transform(node, scores, node.attribute("post_transform", "NONE")), "float32")


@converter("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(node: Node) -> list[relax.Expr]:
    """Convert TreeEnsembleClassifier with integer labels; outputs are labels and scores.

    If all leaves refer to one of two classes, their sum is the score of the second class.
    """
    labels = class_labels(node, "classlabels_int64s")
    ids, kind = set(node.attribute("class_ids", ())), node.attribute("post_transform", "NONE")
    alone = len(labels) == 2 and ids == {0}
    _check_classes(node, len(labels), ids)
    forest = _forest_of_trees(node, "class", len(labels), SUM, fold=alone)
    scores = _walk(node, forest)
    if alone:
        weights = _values(node, "class_weights")
        return one_class(node, _add_base(node, scores, forest), labels, kind, bool((weights >= 0).all()))
    scores = node.emit(_add_base(node, scores, forest))
    best = relax.op.argmax(scores, axis=1)
    transformed = relax.op.astype(post_transform(node, scores, kind), "float32")
    return [relax.op.take(relax.const(labels, "int64"), node.emit(best), 0), transformed]


def _check_classes(node: Node, classes: int, ids: set[int]) -> None:
    """Refuse the classifiers on which ONNX Runtime and ONNX's reference differ, and the standard is silent.

    If leaves refer to both of two classes, or to several of more classes, the reference's rule applies: the class with
    the largest sum wins, and the sum of a class without leaves is 0.
    """
    base = len(_base(node))
    if classes < 2 or (classes == 2 and ids == {1}) or (classes > 2 and len(ids) == 1):
        raise node.unsupported(
            f"it has {classes} classes, and its leaves refer to the classes {sorted(ids)}: results then differ between "
            "ONNX Runtime and ONNX's reference; with two classes, leaves may refer to both or to the first, with more "
            "classes to at least two"
        )
    allowed = classes if classes > 2 else 1 if ids == {0} else 0
    if base not in (0, allowed):
        raise node.unsupported(
            f"it has {base} base values for {classes} classes; {allowed} are allowed, since ONNX Runtime and ONNX's "
            "reference differ on others: add them to the leaves of a tree"
        )


def _kind(x: relax.Expr) -> str:
    """Return the type in which features are compared and leaves are summed."""
    return "float64" if dtype_of(x) == "float64" else "float32"


def _walk(node: Node, forest: Forest) -> relax.Expr:
    """Emit the kernel; its result has the shape (rows, outputs) and the type of the splits."""
    x, dtype = node.input(0), str(forest.splits.dtype)
    shape = node.shape(x, "its input X")
    if len(shape) == 1:
        shape, x = (1, *shape), node.emit(relax.op.reshape(x, (1, *shape)))
    if len(shape) != 2:
        raise node.unsupported(f"its input X has {len(shape)} dimensions; (rows, features) is allowed")
    if forest.inner and not 0 <= forest.features.min() <= forest.features.max() < shape[1]:
        raise node.unsupported(f"its trees read feature {forest.features.max()}, but its input has {shape[1]} features")
    if not 0 <= forest.targets.min(initial=0) <= forest.targets.max(initial=0) < forest.outputs:
        raise node.unsupported(f"its leaves name target {forest.targets.max()}, but it has {forest.outputs} targets")
    if not shape[0]:
        return relax.op.zeros((0, forest.outputs), dtype)
    if dtype_of(x) != dtype:
        x = node.emit(relax.op.astype(x, dtype))
    try:
        kernel = forest_kernel(forest, *shape)
    except ValueError as error:
        raise node.unsupported(f"its trees are broken: {error}") from None
    tables = [relax.const(np.ascontiguousarray(table), str(table.dtype)) for table in forest.tables()]
    function = node.builder.add_func(kernel, "trees")
    return node.emit(relax.call_tir(function, [x, *tables], relax.TensorType((shape[0], forest.outputs), dtype)))


def _forest_of_nodes(node: Node, dtype: str) -> Forest:
    """Return the forest of a TreeEnsemble."""
    modes, splits = (_values(node, name) for name in ("nodes_modes", "nodes_splits"))
    inner = len(modes)
    features = _ints(node.attribute("nodes_featureids"))
    missing = _ints(node.attribute("nodes_missing_value_tracks_true") or (0,) * inner)
    sides = []
    for side in ("false", "true"):
        to, ends = (_ints(node.attribute(f"nodes_{side}{what}")) for what in ("nodeids", "leafs"))
        sides.append(np.where(ends == 1, to + inner, to))
    links = np.stack(sides, 1)
    targets, weights = _ints(node.attribute("leaf_targetids")), _values(node, "leaf_weights")
    if not len(features) == len(splits) == len(links) == len(missing) == inner or len(targets) != len(weights):
        raise node.unsupported("its tables of nodes or of leaves differ in length")
    forest = Forest(
        _ints(node.attribute("tree_roots")),
        features,
        modes.astype(np.int32),
        missing,
        splits.astype(dtype),
        links,
        targets[:, None],
        weights.astype(dtype)[:, None],
        int(node.attribute("n_targets", 1)),
        int(node.attribute("aggregate_function", SUM)),
    )
    return _without_sets(node, forest) if MEMBER in modes else forest


def _without_sets(node: Node, forest: Forest) -> Forest:
    """Replace ``x in {a, b, c}`` by the nodes ``x == a``, else ``x == b``, else ``x == c``, which lead to the same node.

    The first takes the place of the set; the others follow all inner nodes, so the numbers of leaves move.
    """
    members = _values(node, "membership_values")
    ends = np.flatnonzero(np.isnan(members))
    asks = np.flatnonzero(forest.modes == MEMBER)
    if len(ends) != len(asks):
        raise node.unsupported(f"it has {len(asks)} nodes that ask for members of a set, and {len(ends)} sets")
    sets = [part[~np.isnan(part)] for part in np.split(members, ends + 1)[: len(ends)]]
    more = sum(max(len(part) - 1, 0) for part in sets)
    inner, (roots, links) = (
        forest.inner,
        (np.where(at >= forest.inner, at + more, at).astype(np.int32) for at in (forest.roots, forest.links)),
    )
    splits, modes, source = forest.splits.copy(), np.where(forest.modes == MEMBER, EQ, forest.modes), list(range(inner))
    added: list[Any] = []
    behind: list[list[int]] = []
    for at, part in zip(asks, sets, strict=True):
        splits[at] = part[0] if len(part) else np.nan  # an empty set: nothing equals NaN
        last, (no, yes) = int(at), links[at].tolist()
        for value in part[1:]:
            new = inner + len(added)
            (behind if last >= inner else links)[last - inner if last >= inner else last] = [new, yes]
            added.append(value)
            behind.append([no, yes])
            source.append(int(at))
            last = new
    if added:
        splits, links = np.append(splits, np.array(added, splits.dtype)), np.append(links, _ints(behind), 0)
    return Forest(
        roots, forest.features[source], modes[source].astype(np.int32), forest.missing[source], splits, links,
        forest.targets, forest.weights, forest.outputs, forest.aggregate,
    )  # fmt: skip


def _forest_of_trees(node: Node, what: str, outputs: int, aggregate: int, fold: bool = False) -> Forest:
    """Return the forest of a TreeEnsembleRegressor or TreeEnsembleClassifier; ``fold`` merges all targets into one.

    Public forests have millions of nodes, so each attribute is read once, and no step is one of Python for each node.
    """
    dtype = _kind(node.input(0))
    texts = np.array(node.attribute("nodes_modes"))
    is_leaf, modes = texts == "LEAF", np.full(len(texts), -1, np.int32)
    for number, mode in enumerate(_MODES):
        modes[texts == mode] = number
    unknown = set(texts[~is_leaf & (modes < 0)].tolist())
    if unknown:
        raise node.unsupported(f"its nodes compare by {', '.join(sorted(unknown))}; allowed are {', '.join(_MODES)}")
    inner = int((~is_leaf).sum())
    numbers = np.where(is_leaf, inner + np.cumsum(is_leaf) - 1, np.cumsum(~is_leaf) - 1)
    trees, nodes, features, *to = (
        _ints(node.attribute(f"nodes_{name}"))
        for name in ("treeids", "nodeids", "featureids", "falsenodeids", "truenodeids")
    )
    missing = _ints(node.attribute("nodes_missing_value_tracks_true") or np.zeros(len(texts)))
    values, weights = _values(node, "nodes_values"), _values(node, f"{what}_weights")
    leaf_trees, leaf_nodes, targets = (
        _ints(node.attribute(f"{what}_{name}")) for name in ("treeids", "nodeids", "ids")
    )
    tables = (trees, nodes, features, values, missing, *to)
    if any(len(t) != len(texts) for t in tables) or {len(leaf_trees), len(leaf_nodes), len(targets)} != {len(weights)}:
        raise node.unsupported("its tables of nodes or of leaves differ in length")
    keys = _keys(trees, nodes)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]

    def find(wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        at = np.searchsorted(ordered, wanted, "right") - 1  # the last of several nodes of one number
        known = at >= 0
        known[known] = ordered[at[known]] == wanted[known]
        if not known.all():
            pair = divmod(int(wanted[~known][0]) + _HALF, 2 * _HALF)
            raise node.unsupported(f"its trees are broken: there is no node {(pair[0], pair[1] - _HALF)} (tree, node)")
        return numbers[order[at]]

    links = np.stack([find(_keys(trees[~is_leaf], side[~is_leaf])) for side in to], 1)
    leaves = find(_keys(leaf_trees, leaf_nodes)) - inner
    is_child = np.zeros(len(texts), bool)
    is_child[links] = True
    every = find(keys)
    roots = every[~is_child[every]]
    if len(roots) != len(np.unique(trees)):
        raise node.unsupported("its trees are broken: each needs one node that no other leads to")
    entries = leaves >= 0  # entries of inner nodes have no meaning
    return Forest(
        _ints(roots),
        features[~is_leaf],
        modes[~is_leaf],
        missing[~is_leaf],
        values.astype(dtype)[~is_leaf],
        _ints(links),
        *_entries(
            leaves[entries], targets[entries] * (not fold), weights[entries].astype(dtype), int(is_leaf.sum()),
            _NEUTRAL.get(aggregate, 0.0),
        ),
        1 if fold else outputs,
        aggregate,
    )  # fmt: skip


_HALF = 1 << 31


def _keys(trees: npt.NDArray[np.int32], nodes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return one number for each pair of a tree and a node."""
    return trees.astype(np.int64) * (2 * _HALF) + nodes


def _entries(
    leaves: npt.NDArray[np.int64], to: npt.NDArray[np.int32], added: npt.NDArray[Any], count: int, neutral: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return the contributions of ``count`` leaves as tables (leaves, most entries of a leaf)."""
    counts = np.bincount(leaves, minlength=count)
    order = np.argsort(leaves, kind="stable")
    column = np.arange(len(leaves)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(int(counts.max(initial=0)), 1)
    targets, weights = np.zeros((count, width), np.int32), np.full((count, width), neutral, added.dtype)
    targets[leaves[order], column], weights[leaves[order], column] = to[order], added[order]
    return targets, weights


def _base(node: Node) -> npt.NDArray[Any]:
    return _values(node, "base_values") if _has(node, "base_values") else np.zeros(0)


def _add_base(node: Node, scores: relax.Expr, forest: Forest) -> relax.Expr:
    base = _base(node)
    if not len(base):
        return scores
    if len(base) not in (1, forest.outputs):
        raise node.unsupported(f"it has {len(base)} base values for {forest.outputs} results")
    return relax.op.add(scores, relax.const(base.astype(forest.splits.dtype), str(forest.splits.dtype)))


def _has(node: Node, name: str) -> bool:
    return bool(node.attributes.get(name)) or f"{name}_as_tensor" in node.attributes


def _values(node: Node, name: str) -> npt.NDArray[Any]:
    """Return numbers from a list, or from a tensor of the same name or with the suffix ``_as_tensor``."""
    from onnx import TensorProto, numpy_helper

    value = node.attributes.get(f"{name}_as_tensor")
    if value is None:
        value = node.attributes.get(name)
    if value is None:
        raise node.unsupported(f"its attribute {name} is missing")
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def _ints(values: Any) -> npt.NDArray[np.int32]:
    return np.asarray(values if values is not None else (), np.int32)
