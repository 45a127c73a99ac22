"""ApplySchedules: take the loops of kernels from a database of TVM's meta schedule."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule

from tvm_frontends.errors import ModelWarning, first_line
from tvm_sched_runtime.errors import InputError

from ...progress import report_progress
from ..ir.attributes import DEVICE_KIND, get_compile_target
from ..ir.flops import FLOPS, count_flops
from ..ir.loops import SCHEDULED, is_scheduled
from ..toolchain.compile_target import features_of
from ..toolchain.nvcc import architectures

FILES = ("database_workload.json", "database_tuning_record.json")
"""What TVM's tuner leaves in its ``work_dir``."""
MOST_RECORDS = 1 << 20
"""Records of one kernel that are read to find the fastest one for the target."""


def open_database(folder: str) -> meta_schedule.Database:
    """Open the database that TVM's tuner left in a folder.

    Raises
    ------
    InputError
        It is not there or cannot be read.
    """
    paths = [Path(folder, name) for name in FILES]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise InputError(
            f"tuned is {folder!r}, where there is no {missing[0]}; the folder that TVM's tuner got as work_dir is allowed"
        )
    try:
        return meta_schedule.database.JSONDatabase(*map(str, paths))
    except Exception as error:  # whatever TVM's reader raises
        raise InputError(f"tuned is {folder!r}, whose schedules cannot be read: {first_line(error)}") from None


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.ApplySchedules")
class ApplySchedules:
    """Give kernels the loops that a database of TVM's meta schedule has for them.

    Of the records of a kernel for the compile target (`fits`) the fastest is taken. The kernel then has TVM's attribute
    ``tirx.is_scheduled``, as one that dlight scheduled: no pass rearranges or vectorises its loops, and its operator's
    kind begins with ``scheduled.``. Kernels that have a schedule already keep it.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.Database
        The schedules, such as those of `open_database`.
    archs : sequence of str
        GPU architectures that a module for GPUs is compiled for. Records have to be for the oldest.

    Examples
    --------
    >>> from tvm.s_tir import meta_schedule
    >>> from tvm_sched.relax.passes import ApplySchedules
    >>> ApplySchedules(meta_schedule.database.MemoryDatabase()).info.name
    'tvm_sched.ApplySchedules'
    """

    def __init__(self, database: meta_schedule.Database, archs: Sequence[str] = ()) -> None:
        self.database = database
        self.archs = tuple(archs)

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module; warn if the database has schedules of its kernels that were not taken, or of none."""
        target = get_compile_target(mod).host
        if mod.attrs and DEVICE_KIND in mod.attrs:
            target = tvm.target.Target({"kind": "cuda", "arch": architectures(self.archs)[0]}, host="llvm")
        result, taken, refused = mod.clone(), 0, dict[str, str]()
        kernels = [(v, f) for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc) and not is_scheduled(f)]
        for position, (variable, function) in enumerate(kernels):
            report_progress("looking up schedules of kernels", position, len(kernels))
            name = str(variable.name_hint)
            found = [(each, _best_record(self.database, each, target, name)) for each in _workloads(function)]
            workload, record = next((pair for pair in found if pair[1] is not None), (None, None))
            if workload is None or record is None:
                continue
            if not fits(record.target, target):
                refused[name] = f"tuned for {_brief(record.target)}"
            elif (schedule := _scheduled(workload, record, target)) is None:
                refused[name] = "TVM cannot apply the record"
            else:
                attributes = {**dict(function.attrs.items()), FLOPS: count_flops(function), SCHEDULED: True}
                scheduled = schedule.mod["main"].without_attr("global_symbol").with_attrs(attributes)
                result.update_func(variable, scheduled)
                taken += 1
        if refused:
            listed = ", ".join(f"{name} ({why})" for name, why in list(refused.items())[:3])
            warnings.warn(
                f"{len(refused)} kernels do not use the schedules that the database has for them: {listed}; kernels are "
                f"compiled for {_brief(target)}",
                ModelWarning,
                stacklevel=2,
            )
        elif not taken:
            warnings.warn(
                "the database has a schedule for none of the kernels: tune the module that "
                "run_passes(model, topology, 'LowerToKernels') returns. Kernel libraries compute "
                "their operators themselves; TVM_SCHED_KERNEL_LIBRARIES= leaves all to TVM",
                ModelWarning,
                stacklevel=2,
            )
        return result


def fits(tuned_for: tvm.target.Target | None, target: tvm.target.Target) -> bool:
    """Whether a schedule that was tuned for one target may be used for another.

    The kinds are equal, and so are processor (``mcpu``) and GPU (``arch``) if the record names one. A CPU also has all
    instructions that the record may use. Numbers of cores do not matter.
    """
    if tuned_for is None or tuned_for.kind.name != target.kind.name:
        return False
    if target.kind.name != "llvm":
        return _attribute(tuned_for, "arch") in ("", _attribute(target, "arch"))
    same = _attribute(tuned_for, "mcpu") in ("", "generic", _attribute(target, "mcpu"))
    machines = {_attribute(each, "mtriple").partition("-")[0] for each in (tuned_for, target)} - {""}
    return same and len(machines) < 2 and set(features_of(tuned_for)) <= set(features_of(target))


def _attribute(target: tvm.target.Target, name: str) -> str:
    return str(target.attrs.get(name, "") or "")


def _brief(target: tvm.target.Target | None) -> str:
    if target is None:
        return "no target"
    return " ".join([target.kind.name, *(filter(None, (_attribute(target, name) for name in ("mcpu", "arch"))))])


def _workloads(function: tvm.tirx.PrimFunc) -> list[tvm.IRModule]:
    """Return a kernel as TVM's tuner may store it: with the pattern for fusion, or without."""
    named = function.with_attrs({"global_symbol": "main", "tirx.noalias": True})
    bare = named.without_attr("op_pattern") if "op_pattern" in named.attrs else None
    return [tvm.IRModule({"main": each}) for each in (named, bare) if each is not None]


def _best_record(
    database: meta_schedule.Database, workload: tvm.IRModule, target: tvm.target.Target, name: str
) -> meta_schedule.database.TuningRecord | None:
    """Return the fastest record of a kernel for a target; else its fastest one for another target, else None."""
    best = database.query_tuning_record(workload, target, name)
    if best is None or fits(best.target, target):
        return best
    if not database.has_workload(workload):  # a database of several
        return best
    records = database.get_top_k(database.commit_workload(workload), MOST_RECORDS)
    return next((record for record in records if fits(record.target, target)), best)


def _scheduled(
    workload: tvm.IRModule, record: meta_schedule.database.TuningRecord, target: tvm.target.Target
) -> s_tir.Schedule | None:
    """Apply a record to a kernel; None if it does not go with the kernel's loops.

    A database may find a record by the kernel's main loop alone, whose other loops TVM then arranges.
    """
    for anchored in (False, True):
        schedule = s_tir.Schedule(workload)
        try:
            if anchored:
                meta_schedule.trace_apply.schedule_using_anchor_trace(schedule, record.trace, target)
            else:
                record.trace.apply_to_schedule(schedule, remove_postproc=False)
        except (RuntimeError, ValueError, TypeError):
            continue
        return schedule
    return None
