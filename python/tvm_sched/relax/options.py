"""`CompileOptions`: the validated options of `compile`, `compile_pipeline`, `pipeline`, `target` and the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

import msgspec

from tvm_sched_runtime.checks import require_number_or_auto, shown
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import MEASURED, Topology, load_topology
from tvm_sched_runtime.runtime.machine import check_threads

from ..streams import BEST, check_methods

SCHEDULER, PARTITIONER = "anytime", "anytime"
OBJECTIVES = ("latency", "throughput")
BACKENDS = ("cpu", "emulated", "cuda")
_ALLOWED: Mapping[str, tuple[str | None, ...]] = {
    "objective": OBJECTIVES,
    "backend": (None, *BACKENDS),
    "parameters": ("auto", "embed", "external"),
    "precision": ("float32", "bfloat16", "tf32"),
}
_OF_LATENCY = (
    "scheduler", "measure", "streams", "launch_order", "variants", "rows", "row_parts", "graph", "resident", "instances",
    "states",
)  # fmt: skip
_OF_THROUGHPUT = ("stages", "partitioner", "devices", "latency_ceiling", "throughput_floor")


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of compilation. Equal options of an equal model give an equal schedule, unless ``measure`` is set.

    Parameters
    ----------
    topology : Topology, str or path
        The machine: a `Topology`, the name of a preset, or a topology file. The attribute is the `Topology`.
    objective : {"latency", "throughput"}
        ``"latency"``: a scheduler makes one run fast. ``"throughput"``: a partitioner cuts the model into a pipeline of
        stages, through which many batches pass.
    scheduler, partitioner : str
        Names of registered methods.
    options : mapping
        Options of the scheduler or the partitioner.
    cost_model : str or callable, optional
        Name of a registered cost model, a file of latencies, or a function ``(graph, topology) -> Costs``. Default:
        that of `default_cost_model`.
    backend : {"cpu", "emulated", "cuda"}, optional
        What runs the model. ``"cuda"`` compiles for GPUs and needs nvcc; ``"emulated"`` computes on this machine's CPU and
        takes the time that the plan says. Default: ``"cpu"`` if all devices of the topology are CPUs, else ``"emulated"``.
    measure : bool, optional
        Run the schedule and others for the same cores on this machine and keep the fastest, which may use another number
        of logical devices. Default: only for the topology ``"cpu"`` (see `measuring`).
    streams : {"one", "opara", "nimble", "wavefront", "fewest", "best"}, optional
        Method that gives operators to streams of their device (`tvm_sched.streams.allocate_streams`). Default: ``"best"``,
        which takes the least predicted latency among all methods and the scheduler's own streams, if the costs predict how
        operators run together. If schedules are measured, ``"best"`` also measures the streams of each method, and a method
        that is named uses measured latencies. If a method is named, the default cost model of GPUs is ``"occupancy"``.
    launch_order : {"depth-first", "breadth-first", "critical-path", "opara", "opara-program", "best"}, optional
        Order in which kernels start (`tvm_sched.streams.order_launches`). Default: ``"best"``, which takes the least
        predicted latency among all orders and the scheduler's own, if a device has several streams. If schedules are
        measured, the order applies to the streams that are named.
    variants : bool
        Whether the scheduler may choose among alternatives for fused kernels. A scheduler that does not choose takes the
        fused kernels.
    rows : bool, optional
        Whether the scheduler may split kernels by rows (batch entries, tokens or image rows). Every part then needs all the
        weights, so this pays only if the weights are already on the devices. Default: true if ``resident`` is given.
    row_parts : int or "auto"
        Number of parts of the batch, or of the tokens of a single sequence, in which the whole model is computed. A part
        goes from kernel to kernel without waiting for the other parts, so devices compute different parts at once. This
        pays for large batches: every device that computes a part needs all the weights of its kernels. Kernels of a library
        are not cut: a model of which a library computes kernels, as oneDNN does on CPUs, is refused. ``"auto"`` takes of 1,
        2, 4 and 8 parts the number with the fastest quick schedule; 1 where the model cannot be cut.
    anchors : int
        Of a model with ranges of sizes on several devices: at most this many schedules, of which each call takes the fastest
        that is for no smaller size, with a certificate for the whole range (``docs/proofs/ranges.md``). 1: one schedule, for
        the largest size.
    parameters : {"auto", "embed", "external"}
        Where parameters' values go: into the artifact, or into a file beside it. ``"auto"`` embeds up to `EMBED_LIMIT`
        bytes.
    processor : str
        Processor that TVM's kernels are compiled for: ``"native"`` (this machine's), or a level ``"x86-64-v2"`` to
        ``"x86-64-v4"``. Several levels separated by commas, or ``"portable"`` for all levels, give kernels for each; loading
        the artifact chooses the highest level that the machine has.
    precision : {"float32", "bfloat16", "tf32"}
        Number format in which float32 products and convolutions with weights multiply. Sums and all other operators remain
        in float32. ``"bfloat16"`` needs a CPU with instructions for it; weights and lookup tables are then stored in
        bfloat16. ``"tf32"`` needs the backend ``"cuda"``: cuBLASLt and cuDNN round operands to 11 bits, for tensor cores.
    tuned : str, optional
        Folder with a database of TVM's meta schedule. A kernel with a record for this target gets the tuned loops.
        Default: the current database (``with database:``), if there is one.
    threads : int, optional
        Threads of all CPU devices together, unless loading the artifact sets another number. Default: all cores.
    cache : bool
        Whether to read and write the caches of compiled kernels and measured choices on disk. The environment variable
        ``TVM_SCHED_NO_CACHE`` switches them off, too.
    graph : bool, optional
        Capture the second of several equal runs on GPUs as a CUDA graph, and replay it from then on.
    resident : float or sequence of str, optional
        Parameters that remain on the devices from run to run: a fraction of their bytes from 0 to 1, or names.
    instances : int, optional
        How many runs may proceed at once. ``graph``, ``resident`` and ``instances`` are initial settings of the artifact,
        which `tvm_sched_runtime.runtime.ScheduledModule.configure` changes.
    states : mapping of str to int
        Inputs that stay in a device's memory from run to run, such as a cache of keys and values. Each has the position of
        the result that becomes its value for the next run; nested results are counted one after the other, from 0. States
        are zero at first, and are neither arguments nor results; see `tvm_sched_runtime.runtime.ScheduledModule.set_state`.
    stages : int or "auto"
        Largest number of stages of a pipeline; ``"auto"``: the number of devices.
    devices : sequence of str, optional
        Names of the devices that a pipeline may use. Default: all.
    latency_ceiling, throughput_floor : float, optional
        Largest time of a batch in a pipeline in seconds, and smallest number of batches a second. At most one may be set.

    Raises
    ------
    InputError
        A value that is not allowed, an unknown topology, method or cost model, or an option of the other objective.

    Examples
    --------
    >>> options = CompileOptions.of("cpu2", scheduler="heft", cost_model="roofline")
    >>> options.scheduler, options.topology.name, options.precision
    ('heft', 'cpu2', 'float32')
    """

    topology: Topology
    objective: str = "latency"
    scheduler: str = SCHEDULER
    partitioner: str = PARTITIONER
    options: Mapping[str, Any] = field(default_factory=dict)
    cost_model: Any = None
    backend: str | None = None
    measure: bool | None = None
    streams: str | None = None
    launch_order: str | None = None
    variants: bool = True
    rows: bool | None = None
    row_parts: int | Literal["auto"] = 1
    anchors: int = 4
    parameters: str = "auto"
    processor: str = "native"
    precision: str = "float32"
    tuned: str | None = None
    threads: int | None = None
    cache: bool = True
    graph: bool | None = None
    resident: float | Sequence[str] | None = None
    instances: int | None = None
    states: Mapping[str, int] = field(default_factory=dict)
    stages: int | Literal["auto"] = "auto"
    devices: Sequence[str] | None = None
    latency_ceiling: float | None = None
    throughput_floor: float | None = None
    _named_cpu: Topology | None = field(default=None, repr=False)  # the topology, if the name "cpu" gave it

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if (value := getattr(self, name)) not in allowed:
                known = ", ".join(repr(each) for each in allowed if each is not None)
                raise InputError(f"{name} is {value!r}; allowed are {known}")
        require_number_or_auto("stages", self.stages)
        require_number_or_auto("row_parts", self.row_parts)
        check_methods(self.streams, self.launch_order)
        check_threads(self.threads)
        tuned: Any = self.tuned
        if not isinstance(tuned, (str, os.PathLike, type(None))):
            raise InputError(f"tuned is {shown(tuned)}; the folder of a database of TVM's tuner is allowed")
        if tuned is not None:
            object.__setattr__(self, "tuned", os.fspath(tuned))
        self._check_run()
        self._check_states()
        self._check_objective()
        source: Any = self.topology  # until here also a name or a file
        if not isinstance(source, Topology):
            object.__setattr__(self, "topology", load_topology(source))
        others = [device.name for device in self.topology.devices if device.kind != "cpu"]
        if self.precision == "bfloat16" and others:
            raise InputError(f"precision {self.precision!r} is for topologies of CPUs; {others[0]!r} is none")
        if self.precision == "tf32" and self.backend != "cuda":
            raise InputError("precision 'tf32' is for GPUs: give backend='cuda', too")
        if source == MEASURED:
            object.__setattr__(self, "_named_cpu", self.topology)
        self._check_measure()
        self._check_methods()

    def _check_run(self) -> None:
        for name in ("variants", "rows", "graph", "measure", "cache"):
            if (value := getattr(self, name)) not in (None, False, True):  # else "no" would mean yes
                raise InputError(f"{name} is {value!r}; true and false are allowed")
        if not (_is_whole(self.anchors) and 1 <= self.anchors <= 64):
            raise InputError(f"anchors is {self.anchors!r}; 1 to 64 are allowed")
        if self.instances is not None and not (_is_whole(self.instances) and 1 <= self.instances <= 1024):
            raise InputError(f"instances is {self.instances!r}; 1 to 1024 are allowed")
        part = isinstance(self.resident, (int, float))
        if isinstance(self.resident, (bool, str)) or (part and not 0 <= self.resident <= 1):  # type: ignore[operator]
            raise InputError(
                f"resident is {self.resident!r}; a fraction from 0 to 1, or names of parameters, is allowed"
            )
        if isinstance(self.devices, str):
            raise InputError(f"devices is {self.devices!r}; a list of names of devices is allowed: [{self.devices!r}]")
        if self.rows and not self.variants:
            raise InputError("rows is True and variants is False; rows are variants: leave one of the two away")
        if self.graph and self.backend != "cuda":
            raise InputError("graph is for GPUs: give backend='cuda', too")

    def _check_states(self) -> None:
        if not isinstance(self.states, Mapping) or not all(
            isinstance(name, str) and _is_whole(position) for name, position in self.states.items()
        ):
            raise InputError(
                f"states is {self.states!r}; names of inputs with positions of results are allowed: {{'k': 1}}"
            )
        if self.states and (self.instances or 1) > 1:
            raise InputError(
                f"instances is {self.instances!r}; with states, 1 is allowed: each run goes on from the last"
            )

    def _check_measure(self) -> None:
        if self.measure and self.backend not in (None, "cpu"):
            raise InputError(
                f"backend is {self.backend!r}; schedules are measured where they run on this machine's cores ('cpu')"
            )
        if self.measuring and self.launch_order not in (None, BEST) and self.streams is None:
            raise InputError(
                f"launch_order {self.launch_order!r} would have no effect: where schedules are measured, it is that of the "
                "streams that are named; name streams ('best' for all), too, or do not measure"
            )

    def _check_objective(self) -> None:
        latency = self.objective == "latency"
        for name in _OF_THROUGHPUT if latency else _OF_LATENCY:
            value = getattr(self, name)
            if value != DEFAULTS[name] and value is not False:
                raise InputError(
                    f"{name} is for a pipeline: give objective='throughput', too"
                    if latency
                    else f"{name} is for objective='latency'; a pipeline's stages are cut by a partitioner"
                )

    @classmethod
    def of(cls, topology: CompileOptions | Topology | str | os.PathLike[str], /, **settings: Any) -> CompileOptions:
        """Make options of a topology, or of other options, and settings; None means the default.

        Raises
        ------
        InputError
            As for the class; also an unknown setting.
        """
        check_names(settings)
        changes = {name: value for name, value in settings.items() if value is not None}
        for name, value in changes.items():
            if hasattr(value, "__array__"):  # comparisons with it have several answers
                raise InputError(f"{name} is {shown(value)}; numbers, texts, lists and mappings are allowed")
        if isinstance(topology, CompileOptions):
            return replace(topology, **changes) if changes else topology
        return cls(topology=topology, **changes)  # type: ignore[arg-type]

    def _check_methods(self) -> None:
        from .. import pipeline, schedulers
        from ..cost_model import get_cost_model

        method = schedulers.get(self.scheduler) if self.objective == "latency" else pipeline.get(self.partitioner)
        method.read_options(self.options)
        if isinstance(self.cost_model, str):
            get_cost_model(self.cost_model)

    @property
    def measuring(self) -> bool:
        """Whether schedules are measured: as set; by default only if the topology was named ``"cpu"``.

        Other topologies state which devices to use, and give the same schedule on every machine. Measuring changes both.
        """
        if self.measure is not None:
            return self.measure
        named = self._named_cpu is not None and self._named_cpu is self.topology
        return named and self.backend in (None, "cpu") and self.objective == "latency"

    @property
    def offers_rows(self) -> bool:
        """Whether splits by rows are offered for warm runs."""
        return bool(self.resident) if self.rows is None else self.rows

    @property
    def takes_open_sizes(self) -> bool:
        """Whether a model may have open dimensions: only on CPUs, for the latency of one run, and without states."""
        on_cpus = self.backend in (None, "cpu") and all(device.kind == "cpu" for device in self.topology.devices)
        return on_cpus and self.objective == "latency" and not self.states

    @property
    def run_options(self) -> dict[str, Any]:
        """Initial settings of the artifact, as `ScheduledModule.configure` takes them."""
        settings = {"graph": self.graph, "resident": self.resident, "instances": self.instances}
        return {name: value for name, value in settings.items() if value is not None}

    def to_json(self) -> str:
        """Write all options but the topology that are not the default, as JSON for `from_json`."""
        changed = {name: value for name, value in vars(self).items() if name in DEFAULTS and value != DEFAULTS[name]}
        if callable(changed.get("cost_model")):
            raise InputError("cost_model is a function, which a target cannot name; register it (register_cost_model)")
        try:
            return json.dumps(changed)
        except TypeError:
            wrong = next(name for name, value in changed.items() if not _is_plain(value))
            raise InputError(
                f"{wrong} is {shown(changed[wrong])}; a target takes numbers, texts, lists and mappings"
            ) from None

    @classmethod
    def from_json(cls, topology: Topology | str, text: str) -> CompileOptions:
        """Read options that `to_json` or a person wrote; raises `InputError` if the text is not a JSON object of options."""
        try:
            settings = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise InputError(f"the target's options are {text!r}, which is not a JSON object: {error}") from None
        return cls.of(topology, **settings)


DEFAULTS: Mapping[str, Any] = {
    each.name: {} if each.default is MISSING else each.default
    for each in fields(CompileOptions)
    if each.name not in ("topology", "_named_cpu")
}
"""The defaults of all options but the topology, which has none."""


def check_names(settings: Mapping[str, Any]) -> None:
    """Raise `InputError` for names that are not options."""
    unknown = [name for name in settings if name not in DEFAULTS]
    if unknown:
        raise InputError(f"there is no option {unknown[0]!r} of compilation; there are {', '.join(sorted(DEFAULTS))}")


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
