"""`ScheduledModule`: the handle of a compiled artifact."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from .. import core_library
from ..errors import ExecutionError, InputError
from .machine import check_threads
from .statistics import LatencyStatistics
from .tensors import to_numpy, to_tensor
from .virtual_machine import VirtualMachine

_KIND = "tvm_sched"
_IN_THE_MODEL = {
    "first run": "partly", "copies of the first run": "counted", "kernels of the first run": "counted",
    "reads of the first run": "counted",
}  # fmt: skip


class ScheduledModule:
    """A model with its schedule, ready to run.

    Parameters
    ----------
    module
        A ``tvm_ffi`` module of kind ``tvm_sched``, or any module that imports one: what ``tvm.compile`` or
        ``load_module`` returns, or a ``relax.VMExecutable``.
    root : optional
        Owner of the kernels' code if that is not ``module`` itself; kept alive with this handle.

    Raises
    ------
    InputError
        The module contains no scheduled module, or the several modules of a pipeline.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched_runtime.runtime import load
    >>> module = load("model.so")
    >>> [output.shape for output in module.run(numpy.ones((2, 3), "float32"))]
    [(2, 2)]
    >>> module.latency() > 0
    True
    """

    def __init__(self, module: Any, root: Any = None) -> None:
        self._module = find_scheduled_module(module)
        self._root = (module, root)

    @property
    def module(self) -> Any:
        """The ``tvm_ffi`` module of kind ``tvm_sched``."""
        return self._module

    def run(self, /, *inputs: Any, **named: Any) -> list[Any]:
        """Run the model once.

        Parameters
        ----------
        inputs
            The model's inputs in their order: arrays, or tensors of any DLPack library, in the CPU's memory. A module for
            GPUs also takes tensors in GPU memory, without a copy through the host. It reads them after the work on the
            tensors' stream: PyTorch's current stream; for other libraries the default stream, or the one of
            ``tvm_ffi.use_raw_stream``.
        named
            Inputs by name, after the positional ones; `plans` lists the names. Any name will do: ``run(**{"a/b:0": x})``.

        Returns
        -------
        list of numpy.ndarray
            The outputs in the model's order, a list also for a single one; nested outputs are flattened. An input that is
            also an output is included, and equal outputs are repeated; each output has memory of its own, which no later
            run writes and the caller may change. If an input is on a GPU, the outputs are tensors on
            the first such input's GPU: of PyTorch if an input there is PyTorch's, else of ``tvm_ffi``, which every DLPack
            library takes.

        Raises
        ------
        InputError
            No plan takes inputs of these shapes and data types, or an input is not an array.
        ExecutionError
            Parameters are missing, or an operator failed; the message names it and its device. Or the runs compute no
            values (``configure(times_only=True)``).
        """
        result = self.run_tensors(*inputs, **named)
        return [tensor if self._uses_gpus and _on_gpu(tensor) else to_numpy(tensor) for tensor in result]

    @cached_property
    def _uses_gpus(self) -> bool:
        needs = self.info().get("needs")
        return "cuda" in ([needs["backend"]] if needs else [plan["backend"] for plan in self._documents])

    @cached_property
    def emulated(self) -> bool:
        """Whether devices are emulated: kernels and transfers take the plan's time, and this machine computes values."""
        return any(plan["backend"] == "emulated" for plan in self.plans())

    def run_times(self, /, *inputs: Any, **named: Any) -> float:
        """Run the model once for its times and return the latency in seconds, see `latency`.

        Emulated devices then compute no values; real devices do.

        Raises
        ------
        InputError, ExecutionError
            As for `run`.
        """
        tensors = self.check_inputs(*inputs, **named)
        try:
            return int(self._module["run_times"](*tensors)) * 1e-9
        except Exception as error:
            raise ExecutionError(str(error)) from error

    def check_inputs(self, /, *inputs: Any, **named: Any) -> list[Any]:
        """Return the inputs of `run` in their order as tensors.

        A tensor on a GPU stays as it is if its library shares streams and memory with ``tvm_ffi``.

        Raises
        ------
        InputError
            As for `run`.
        """
        tensors = self._tensors(self._in_order(inputs, named))
        self._check_plan(tensors)
        return tensors

    def _check_plan(self, tensors: Sequence[Any]) -> None:
        """Refuse inputs that no plan takes."""
        try:
            self._plan_of(*tensors)
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from None

    def _tensors(self, ordered: Sequence[Any]) -> list[Any]:
        tensors: list[Any] = []
        try:
            for value in ordered:
                tensors.append(to_tensor(value))
        except InputError as error:
            arguments = self._documents[0]["arguments"]
            name = f" ({arguments[len(tensors)]['name']})" if len(tensors) < len(arguments) else ""
            raise InputError(f"input {len(tensors)}{name}: {error}") from None
        if not self._uses_gpus:
            return tensors
        return [
            value if _on_gpu(tensor) and hasattr(value, "__dlpack_c_exchange_api__") else tensor
            for value, tensor in zip(ordered, tensors, strict=True)
        ]

    def run_tensors(self, /, *inputs: Any, **named: Any) -> list[Any]:
        """Run the model once as `run` does; return ``tvm_ffi`` tensors, or PyTorch's as `run` says."""
        tensors = self._tensors(self._in_order(inputs, named))
        if self._virtual_machine is not None:
            self._check_plan(tensors)
            if any(map(_on_gpu, tensors)):
                raise InputError(
                    "a part of the model has sizes that are known only when it runs, and takes inputs in the CPU's memory: "
                    "move them there first"
                )
            return self._virtual_machine.run(*tensors)
        try:
            result = self._run_for_results(*tensors)
        except Exception as error:
            self._check_plan(tensors)  # only now: each call would pay for it
            raise ExecutionError(str(error)) from error
        return list(result) if isinstance(result, self._several) else [result]

    @cached_property
    def _several(self) -> Any:
        """The type of several results."""
        from tvm_ffi import Array

        return Array

    @cached_property
    def _run_for_results(self) -> Any:
        return self._module["tvm_sched.results"]

    @cached_property
    def _plan_of(self) -> Any:
        return self._module["plan_of"]

    @cached_property
    def _virtual_machine(self) -> VirtualMachine | None:
        """TVM's virtual machine for a model with sizes that are known only at run time."""
        return VirtualMachine(self._root[0]) if self.info().get("tail") else None

    def configure(
        self,
        *,
        trace: bool | None = None,
        times_only: bool | None = None,
        emulation_scale: float | str | None = None,
        resident: float | Sequence[str] | None = None,
        instances: int | None = None,
        watchdog: float | None = None,
        devices: Sequence[int] | None = None,
        graph: bool | None = None,
        in_turn: bool | None = None,
        pinned_outputs: bool | None = None,
        kept_sizes: int | None = None,
    ) -> None:
        """Set options of the following runs; omitted options stay as they are.

        Parameters
        ----------
        trace
            Record when each step runs, for `timeline`.
        times_only
            Emulated devices compute no values. `run` is then refused; `run_times` and `benchmark` work.
        emulation_scale
            Factor by which emulated devices are slower than the plan's time; ``"auto"`` chooses it for each plan.
        resident
            Parameters that remain on the devices between runs: a fraction of their bytes, 0 to 1, or names. A warm run,
            which follows a run of the same plan, does not load them again. See ``docs/model.md``.
        instances
            Number of runs that may proceed at once, each with memory and threads of its own; other runs wait.
        watchdog
            Seconds after which a run without a finished step is abandoned; the error (and a line on stderr) names the
            operators that run and wait. 0: never. A kernel that hangs cannot be stopped.
        devices
            Number of the GPU of each of the plan's devices; devices may share a GPU (``[0, 0, 0, 0]``). The default is an
            empty list: GPUs like those of the topology, in the order of the PCI bus.
        graph
            Capture the second of several equal runs on GPUs as a CUDA graph, and replay it from then on. Not with
            ``trace``.
        in_turn
            For several ``instances`` on GPUs: the kernels of each run begin when those of the previous run have ended;
            only its copies overlap them. Resident parameters lie on a GPU once for all instances. Not with ``graph``.
        pinned_outputs
            Outputs of runs on GPUs that go to the host are returned where the GPU wrote them, in pinned memory, without a
            copy on the host. While a caller holds more than four of an output, further ones are copied.
        kept_sizes
            Number of the last sizes without a plan of their own for which the plan is kept; other sizes are planned anew.
        """
        options: dict[str, Any] = {
            "trace": trace, "times_only": times_only, "instances": instances, "watchdog": watchdog,
            "devices": None if devices is None else list(devices), "graph": graph,
            "in_turn": in_turn, "pinned_outputs": pinned_outputs, "kept_sizes": kept_sizes,
            "resident": resident if resident is None or isinstance(resident, (int, float)) else list(resident),
        }  # fmt: skip
        options = {name: value for name, value in options.items() if value is not None}
        if emulation_scale is not None:
            options["emulation_scale"] = None if emulation_scale == "auto" else emulation_scale
        with _refused(ValueError):
            self._module["configure"](json.dumps(options))

    def load_parameters(self, path: str | os.PathLike[str]) -> int:
        """Map a safetensors file with the external parameters; return their number.

        Raises
        ------
        InputError
            The file cannot be read or is damaged, or a parameter is missing or of another type.
        """
        with _refused(RuntimeError, ValueError):
            return int(self._module["load_parameters"](os.fspath(path)))

    def set_parameter(self, name: str, value: Any) -> None:
        """Set the value of one parameter for later runs.

        Raises
        ------
        InputError
            The parameter is unknown, or the value is of another type.
        """
        with _refused(ValueError):
            self._module["set_parameter"](name, to_tensor(value))

    def states(self) -> list[dict[str, Any]]:
        """Return ``name, shape, dtype`` of each state, which a run keeps for the next one (`CompileOptions.states`)."""
        known = {state["name"]: state for plan in self.plans() for state in plan.get("states", ())}
        return [{key: state[key] for key in ("name", "shape", "dtype")} for state in known.values()]

    def get_state(self, name: str) -> Any:
        """Return a state after the last successful run as an array in the CPU's memory; zeros before the first run.

        Raises
        ------
        InputError
            The state is unknown.
        """
        with _refused(ValueError):
            return to_numpy(self._module["get_state"](name))

    def set_state(self, name: str, value: Any) -> None:
        """Set a state for the next run; errors are those of `set_parameter`."""
        with _refused(ValueError):
            self._module["set_state"](name, to_tensor(value))

    @property
    def threads(self) -> int:
        """Threads of all CPU devices together."""
        return int(self._module["threads"]())

    def set_threads(self, count: int) -> None:
        """Let all CPU devices together use this many threads, before the first run.

        Raises
        ------
        InputError
            The module has run, or the number is out of range.
        """
        check_threads(count)
        with _refused(ValueError):
            self._module["set_threads"](count)

    def prepare(self) -> None:
        """Prepare the first run now; `tvm_sched_runtime.load` calls this.

        On CPUs, parameters are converted to the kernels' layouts. A plan with missing parameters, or with parameters that
        change later, converts them in its next run.

        For GPUs, those of the first plan are opened, its memory is allocated, and its kernels and libraries are loaded,
        while threads read and pin the parameters. The first run repeats failed steps and reports their errors. After a
        fork the child cannot use GPUs.
        """
        self._module["prepare"]()

    def sleep(self) -> int:
        """Free the memory of a module that is not needed for a while; return the bytes of parameters and arenas freed.

        Parameters that were loaded from files, kernels' copies of parameters in their own layouts, and the memory for
        intermediate tensors are freed; on GPUs also captured graphs and pinned memory. The plans, compiled kernels,
        threads, states, GPUs' contexts, and parameters that lie in no file (embedded, or from `set_parameter`) stay. Runs
        under way end first. Runs are then refused until `wake`.
        """
        return int(self._module["sleep"]())

    def wake(self) -> None:
        """Load the parameters that `sleep` freed from their files again, and prepare the next run as `prepare` does.

        Raises
        ------
        InputError
            A file of parameters is gone or was replaced by another model's; the module sleeps on.
        """
        with _refused(RuntimeError, ValueError):
            self._module["wake"]()

    def parameters(self) -> list[dict[str, Any]]:
        """Return ``name, shape, dtype, embedded, loaded`` of each parameter."""
        return list(json.loads(self._module["parameters"]()))

    def plans(self) -> list[dict[str, Any]]:
        """Return the plans of one set of sizes, as ``docs/formats/plan.md`` describes them."""
        return [plan for plan in self._documents if "symbols" not in plan]

    @property
    def template(self) -> dict[str, Any] | None:
        """The plan template from which runs of sizes without a plan get theirs; None: only `plans` run."""
        return next((plan for plan in self._documents if "symbols" in plan and "takes" not in plan), None)

    def plan_of_run(self, name: str) -> dict[str, Any]:
        """Return the plan of a name in `timeline`: one of `plans`, or the `template` under the name of its instance."""
        documents = {plan["name"]: plan for plan in self._documents}
        return {**documents[name if name in documents else name.rpartition("[")[0]], "name": name}

    @property
    def _documents(self) -> list[dict[str, Any]]:
        plans = json.loads(self._module["plans"]())
        return plans if isinstance(plans, list) else [plans]

    def signature(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return ``name, shape, dtype`` of each input and of each output; -1 is a size that differs between runs.

        Of outputs of a model with a dynamic tail, only the names are there.
        """
        documents = [self.template] if self.template else self.plans()
        inputs = _common([document["arguments"] for document in documents])
        if self.info().get("tail"):
            return inputs, self.outputs()
        return inputs, _common([self.outputs(document) for document in documents])

    def outputs(self, plan: int | Mapping[str, Any] = 0) -> list[dict[str, Any]]:
        """Return ``name, shape, dtype`` of each output, in the order in which `run` returns them.

        ``plan`` is one of `plans`, by number or itself, or the `template`. The names are the model's; sizes that data decide
        are -1. Outputs of a model with a dynamic tail have types that only a run knows: then only the names are there.
        """
        info, document = self.info(), self.plans()[plan] if isinstance(plan, int) else plan
        names = info.get("output_names")
        if info.get("tail"):
            return [{"name": name} for name in names or ()]
        plans = info.get("plans", ())
        places = next((each["results"] for each in plans if each["name"] == document["name"]), None)
        if places is None:  # a template's are those of the plans
            places = plans[0]["results"] if plans else [{"output": k} for k in range(len(document["outputs"]))]
        later = [output for each in self._documents if "takes" in each for output in each["outputs"]]
        values = [*document["arguments"], *document["outputs"], *_common([later])]
        first = {"argument": 0, "value": 0, "output": len(document["arguments"])}
        tensors = [values[first[kind] + position] for place in places for kind, position in place.items()]
        names = names or [f"output_{k}" for k in range(len(tensors))]
        return [
            {"name": name, "shape": tensor["shape"], "dtype": tensor["dtype"]}
            for name, tensor in zip(names, tensors, strict=True)
        ]

    def info(self) -> dict[str, Any]:
        """Return the compiler's metadata: scheduler, topology, certificate."""
        text = self._module["info"]()
        return dict(json.loads(text)) if text else {}

    def processor(self) -> str:
        """Return the processor, or level of processors, of the kernels that run here; "" if it is unknown.

        If an artifact has several levels, it is the highest one of this machine, or the one that the environment variable
        ``TVM_SCHED_PROCESSOR`` named when the artifact was loaded.
        """
        return str(self._module["processor"]())

    def latency(self) -> float:
        """Return the seconds from the start of the last run to the end of its last step.

        For emulated devices they are seconds of the plan's time, without the emulation's scale.
        """
        return int(self._module["latency"]()) * 1e-9

    def timeline(self) -> dict[str, Any]:
        """Return when each step of the last run began and ended, in nanoseconds from the run's start.

        ``{"plan", "backend", "scale", "latency_ns", "wall_ns", "largest_delay_ns", "events": [{"step", "queue",
        "start_ns", "end_ns", "event"}]}``; ``event`` is the step's event in the plan, ``wall_ns`` the time until the caller
        knew that all steps had ended. Times are the plan's, without an emulation's scale.

        Raises
        ------
        ExecutionError
            No run was traced since ``configure(trace=True)``.
        """
        try:
            return dict(json.loads(self._module["timeline"]()))
        except RuntimeError as error:
            raise ExecutionError(str(error)) from None

    def stages(self) -> list[dict[str, Any]]:
        """Return what this process did up to its first output, in seconds from the start of the process.

        ``{"name", "start_s", "end_s", "bytes", "model"}``, by their start; stages overlap where threads work at the same
        time. ``bytes`` is 0 where nothing was moved. ``model`` says whether the cost model counts the time: ``"counted"``
        (copies, reads and kernels of the first run, which are there if it was traced; reads of the file on a machine with
        storage), ``"not counted"``, or ``"partly"`` (the first run as a whole). The start of the process is known to
        0.01 s. Stages are those of all modules of the process; see ``docs/architecture.md``, "CUDA", and
        ``docs/tasks/cold_start.md``.
        """
        measured = json.loads(self._module["stages"]())
        begin = min((stage["start_ns"] for stage in measured), default=0)
        counted = dict(_IN_THE_MODEL)
        if any(stage["name"] == "first bytes" for stage in measured):  # the topology has storage, from which it reads
            counted["read parameters"] = "counted"
        before = {"name": "process", "start_ns": 0, "end_ns": max(begin, 0), "bytes": 0}
        return [
            {
                "name": stage["name"],
                "start_s": stage["start_ns"] * 1e-9,
                "end_s": stage["end_ns"] * 1e-9,
                "bytes": stage["bytes"],
                "model": counted.get(stage["name"], "not counted"),
            }
            for stage in (before, *measured)
        ]

    def benchmark(self, /, *inputs: Any, warmup: int = 3, repeat: int = 20, **named: Any) -> LatencyStatistics:
        """Run the model ``warmup + repeat`` times; return the statistics of the last ``repeat`` latencies.

        Emulated devices compute no values in these runs. Inputs that are called ``warmup`` or ``repeat`` are given by
        position.
        """
        if warmup < 0 or repeat < 1:
            raise InputError(f"warmup is {warmup} and repeat is {repeat}; allowed are 0 or more and 1 or more")
        tensors = self._tensors(self._in_order(inputs, named))
        seconds = [self.run_times(*tensors) for _ in range(warmup + repeat)]
        return LatencyStatistics.of(seconds[warmup:])

    def _in_order(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        if not named:
            return list(inputs)
        names = [argument["name"] for argument in self._documents[0]["arguments"]][len(inputs) :]
        unknown = [name for name in named if name not in names]
        missing = [name for name in names if name not in named]
        if unknown or missing:
            raise InputError(f"inputs not known: {unknown}; missing: {missing}; by name are expected: {names}")
        return [*inputs, *(named[name] for name in names)]


@contextmanager
def _refused(*kinds: type[Exception]) -> Iterator[None]:
    """Turn the executor's refusals into `InputError`; too slow (a microsecond) for the code of each run."""
    try:
        yield
    except kinds as error:
        raise InputError(str(error)) from None


def _common(plans: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the tensors of several plans, with -1 for sizes that differ or are expressions of open dimensions."""
    tensors = []
    for each in zip(*plans, strict=True):
        sizes = zip(*(tensor["shape"] for tensor in each), strict=True)
        shape = [size[0] if isinstance(size[0], int) and len(set(size)) == 1 else -1 for size in sizes]
        tensors.append({"name": each[0].get("name", ""), "shape": shape, "dtype": each[0]["dtype"]})
    return tensors


def _on_gpu(tensor: Any) -> bool:
    return bool(tensor.device.type == "cuda")


def find_scheduled_module(module: Any) -> Any:
    """Return the module of kind ``tvm_sched`` in a module or an executable and its imports.

    Raises
    ------
    InputError
        There is no such module, or there are the stages of a pipeline.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_runtime.runtime import find_scheduled_module, open_library
    >>> find_scheduled_module(open_library(Path("model.so"))).kind
    'tvm_sched'
    """
    modules, others = _search(module)
    if not modules:
        raise InputError(
            f"there is no module of kind {_KIND!r}, only {others}: either it was not compiled with a tvm_sched target, or "
            "the model computes nothing, so that there is nothing to schedule"
        )
    if len(modules) > 1:
        raise InputError(
            f"it holds a pipeline of {len(modules)} stages: run batches with tvm_sched.pipeline.open_pipeline, or one input "
            "with TVM's virtual machine"
        )
    return modules[0]


def scheduled_modules(module: Any) -> list[Any]:
    """Return all modules of kind ``tvm_sched`` in a module or an executable and its imports.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_runtime.runtime import open_library, scheduled_modules
    >>> [module.kind for module in scheduled_modules(open_library(Path("model.so")))]
    ['tvm_sched']
    """
    return _search(module)[0]


def _search(module: Any) -> tuple[list[Any], list[str]]:
    """Return the modules of our kind, whose imports are kernels, and the kinds of all others."""
    core_library.load_library()
    pending = [getattr(module, "mod", module)]  # relax.VMExecutable wraps its module as `mod`
    modules: list[Any] = []
    others: list[str] = []
    while pending:
        candidate = pending.pop(0)
        if candidate.kind == _KIND:
            modules.append(candidate)
        else:
            others.append(candidate.kind)
            pending.extend(candidate.imports)
    return modules, others


def make_module(
    plans: list[dict[str, Any]], metadata: Mapping[str, Any], embedded: Mapping[str, Any] | None = None
) -> Any:
    """Return a new ``tvm_ffi`` module of kind ``tvm_sched``; its kernels are added with ``import_module``.

    Parameters
    ----------
    plans
        In the form of ``docs/formats/plan.md``, one for each set of input shapes.
    metadata
        A JSON document, which `ScheduledModule.info` returns.
    embedded
        Values of the parameters inside the module, by name.
    """
    tensors = {name: to_tensor(value) for name, value in (embedded or {}).items()}
    return core_library.function("tvm_sched.make_module")(json.dumps(plans), json.dumps(metadata), tensors)
