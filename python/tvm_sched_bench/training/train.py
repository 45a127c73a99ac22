"""Train the learned cost model; seeded, so that the same data gives the same file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched.cost_model.device_properties import DeviceProperties
from tvm_sched.cost_model.features import FAMILIES, GROWING, NAMES, Floats
from tvm_sched.cost_model.learned_model import (
    EXPONENT,
    IDENTITY,
    RANGED,
    ErrorInterval,
    KindModel,
    LearnedModel,
    Trees,
    error_interval,
    without_device_columns,
)
from tvm_sched.cost_model.samples import Samples
from tvm_sched.progress import Progress

Rows = npt.NDArray[np.int64]
FOLDS = 5
MOST_SAMPLES = {"cuda": 10_000, "cpu": 20_000}
"""Largest numbers of samples of each device, family and dtype; more make training slower and hardly better."""
_FEW_ROWS = 100_000
_FEW_ERRORS = 20
_ABSOLUTE = ("flops", "read", "parameters", "written")
"""Columns that trees do not use: on a new device, seconds of arithmetic and of bytes say more than their numbers do."""
ROUNDS = {"cuda": 150, "cpu": 300}
"""Numbers of trees. For GPUs, 250 would err 0.1 to 0.4 percentage points less on held-out shapes, but predict two thirds
slower."""
_TREES: dict[str, dict[str, Any]] = {
    "cuda": {"max_leaves": 96, "learning_rate": 0.15, "min_child_weight": 5},
    "cpu": {"max_leaves": 24, "learning_rate": 0.08, "min_child_weight": 2, "colsample_bynode": 0.4},
}
_COMMON = {
    "tree_method": "hist", "grow_policy": "lossguide", "max_depth": 0, "subsample": 0.8, "colsample_bynode": 0.6,
}  # fmt: skip


def train(
    samples: Samples,
    seed: int = 0,
    progress: Progress | None = None,
    about: dict[str, str] | None = None,
    rounds: int | None = None,
) -> LearnedModel:
    """Train a model of every kind of devices in the samples.

    Parameters
    ----------
    seed : int
        Seed of the choice of samples, of the folds and of the trees.
    progress : callable, optional
        Called with the current step, and the numbers of finished and of all steps.
    about : dict of str to str, optional
        Stored in the model.
    rounds : int, optional
        Trees; default `ROUNDS` of the kind of devices.

    Raises
    ------
    InputError
        A time that is not above 0 and finite.
    """
    kinds = sorted({device.kind for device in samples.devices})
    parts = {
        kind: _train_part(kind, _samples_of_kind(samples, kind), seed, progress, rounds or ROUNDS[kind])
        for kind in kinds
    }
    return LearnedModel(parts, dict(about or {}, seed=str(seed)))


def fit(samples: Samples, kind: str, seed: int, rounds: int | None = None) -> Trees:
    """Train the trees alone, without intervals.

    They use the columns that differ between samples. If some of these identify devices, every sample is used twice, once
    without them, so that the trees also predict for unknown devices.
    """
    import xgboost

    columns, ideal = samples.features(), samples.roofline()
    target = np.log(samples.without_join() / ideal**EXPONENT)
    varies = np.array([name not in _ABSOLUTE and _varies(c) for name, c in zip(NAMES, columns.T, strict=True)])
    if varies[list(IDENTITY)].any():
        columns, target = np.concatenate([columns, without_device_columns(columns)]), np.concatenate([target, target])
    threads = 1 if len(columns) < _FEW_ROWS else 2  # beside other work, threads wait for each other more than they gain
    names = tuple(name for name, looked_at in zip(NAMES, varies, strict=True) if looked_at)
    settings = {**_COMMON, **_TREES[kind], "seed": seed, "nthread": threads}
    settings["monotone_constraints"] = tuple(int(name in GROWING) for name in names)
    longest = [ideal[samples.work.family == each].max(initial=0.0) for each in range(len(FAMILIES))]
    reach = tuple(float(each or ideal.max()) for each in longest)
    booster = xgboost.train(settings, xgboost.DMatrix(columns[:, varies], target), rounds or ROUNDS[kind])
    return Trees(booster, names, reach)


def _varies(column: npt.NDArray[np.float32]) -> bool:
    """Return whether a column has different values for different samples."""
    there = column[~np.isnan(column)]
    return len(there) > 0 and bool(len(there) < len(column) or there.min() < there.max())


def errors(trees: Trees, samples: Samples, known: bool) -> Floats:
    """Return log(measured / predicted) of each sample; ``known``: the trees were trained on its device."""
    predicted = samples.with_join(trees.seconds(samples.features(), samples.roofline(), known))
    return np.asarray(np.log(samples.seconds / predicted))


def subsample(samples: Samples, seed: int, most: int) -> Samples:
    """Draw at most ``most`` samples of each device, family and dtype; a quarter of that except for products above 8 bits."""
    rng = np.random.default_rng(seed)
    names = np.array([device.name for device in samples.devices])[samples.device]
    cell = np.char.add(np.char.add(names, samples.work.family.astype(np.str_)), samples.work.dtype)
    matrix = FAMILIES.index("matmul")
    kept: list[Rows] = []
    for each in np.unique(cell):
        rows = np.flatnonzero(cell == each)
        main = samples.work.family[rows[0]] == matrix and not str(samples.work.dtype[rows[0]]).startswith("float8")
        kept.append(np.sort(rng.permutation(rows)[: most if main else most // 4]))
    return samples.take(np.concatenate(kept))


def folds(
    samples: Samples, seed: int, count: int = FOLDS
) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Yield training and held-out rows; a group is held out as a whole."""
    groups, code = np.unique(samples.group, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(groups)) % count
    for n in range(min(count, len(groups))):
        held = fold[code] == n
        yield ~held, held


def chip_groups(devices: Sequence[DeviceProperties]) -> npt.NDArray[np.str_]:
    """Return the groups for holding out devices: devices with the same chip are held out together."""
    shared = {"H200": "H100", "GB200": "B200", "B300": "B200", "GB300": "B200"}
    return np.array([shared.get(device.name, device.name) for device in devices])


def _samples_of_kind(samples: Samples, kind: str) -> Samples:
    return samples.take(np.array([device.kind == kind for device in samples.devices])[samples.device])


def _train_part(kind: str, samples: Samples, seed: int, progress: Progress | None, rounds: int) -> KindModel:
    report = progress or (lambda *_: None)
    few = subsample(samples, seed, MOST_SAMPLES[kind] // (6 if kind == "cuda" else 1))  # intervals need no more
    steps = FOLDS + 2
    known, unknown = np.zeros(len(few)), np.zeros(len(few))
    for n, (kept, held) in enumerate(folds(few, seed)):
        report(f"{kind}, held-out fold {n + 1}", n, steps)
        known[held] = errors(fit(few.take(kept), kind, seed, rounds), few.take(held), known=True)
    report(f"{kind}, held-out devices", FOLDS, steps)
    left_out = chip_groups(few.devices)[few.device]
    names = np.unique(left_out)
    if len(names) > 1:
        for name in names:
            held = left_out == name
            unknown[held] = errors(fit(few.take(~held), kind, seed, rounds), few.take(held), known=False)
    else:  # one device says nothing of others: twice its error is a guess (docs/cost_model.md)
        unknown = 2 * known
    report(f"{kind}, all samples", FOLDS + 1, steps)
    chosen = subsample(samples, seed, MOST_SAMPLES[kind])
    trees = fit(chosen, kind, seed, rounds)
    device = np.array([d.name for d in few.devices])[few.device]
    distinct = {(d.name, d.peak("float32")): d for d in (samples.devices[i] for i in np.unique(samples.device))}
    bits = tuple(map(float, np.unique(samples.features()[:, NAMES.index("bits")])))
    return KindModel(
        bytes(trees.booster.save_raw("ubj")), trees.names, trees.reach, _ranges(samples), bits,
        tuple(distinct.values()), intervals_by_family(few, known, device),
        intervals_by_family(few, unknown, device, left_out),
        error_interval(family_errors(few), device, few.work.family), family_ratio(few, np.unique(few.work.family)),
    )  # fmt: skip


def family_ratio(samples: Samples, families: Rows) -> float:
    """Return log(measured / roofline) of an operator of another family: the median of the families' medians."""
    ratio = np.log(samples.seconds / samples.roofline())
    return float(np.median([np.median(ratio[samples.work.family == family]) for family in families]))


def family_errors(samples: Samples) -> Floats:
    """Return log(measured / predicted) of each sample, predicted by the `family_ratio` of the other families."""
    found, families = np.log(samples.seconds / samples.roofline()), np.unique(samples.work.family)
    for family in families:
        others = families[families != family] if len(families) > 1 else families
        found[samples.work.family == family] -= family_ratio(samples, others)
    return found


def intervals_by_family(
    samples: Samples, error: Floats, device: npt.NDArray[np.str_], alike: npt.NDArray[np.str_] | None = None
) -> dict[str, ErrorInterval]:
    """Return the error intervals of all families, and of each with enough samples for its quantiles."""
    result = {"": error_interval(error, device, alike)}
    for position, family in enumerate(FAMILIES):
        rows = samples.work.family == position
        if rows.sum() >= _FEW_ERRORS:
            result[family] = error_interval(error[rows], device[rows], None if alike is None else alike[rows])
    return result


def _ranges(samples: Samples) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    columns = samples.features()[:, RANGED]
    result = {}
    for position in np.unique(samples.work.family):
        rows = columns[samples.work.family == position]
        result[FAMILIES[position]] = (tuple(map(float, rows.min(axis=0))), tuple(map(float, rows.max(axis=0))))
    return result
