"""`ServicePlacement`: which GPU runs which operators of a service, over which circuits; `Allocation`: all placements."""

from __future__ import annotations

import msgspec

from tvm_sched_runtime.files import Document
from tvm_sched_runtime.search_budget import Status

from .service import ServiceRequest

FORMAT, VERSION = "tvm_sched.allocation", 1


class ServiceStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage of a pipeline: the operators that one GPU runs, in their order.

    Examples
    --------
    >>> from tvm_sched_cluster import ServiceStage
    >>> ServiceStage("rack0-server0-gpu0", operators=("layer0", "layer1"))
    ServiceStage(gpu='rack0-server0-gpu0', operators=('layer0', 'layer1'))
    >>> [len(stage.operators) for stage in placement.stages]
    [2, 2]
    """

    gpu: str
    operators: tuple[str, ...]


class Hop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fibre of a link, which a circuit holds for itself; fibres count from 0.

    Examples
    --------
    >>> from tvm_sched_cluster import Hop
    >>> Hop("sw0-sw1", fibre=2)
    Hop(link='sw0-sw1', fibre=2)
    """

    link: str
    fibre: int


class Circuit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The path of data from a stage's GPU to another's: the links between switches, none where they share one.

    ``source`` and ``target`` are positions of stages. The GPUs' own links at both ends are not listed.

    Examples
    --------
    >>> from tvm_sched_cluster import Circuit, Hop
    >>> Circuit(0, 1, hops=(Hop("sw0-sw1", fibre=2),)).hops[0].link
    'sw0-sw1'
    """

    source: int
    target: int
    hops: tuple[Hop, ...] = ()


class ServicePlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service that runs.

    Examples
    --------
    >>> placement.gpus, placement.cycle_ns, placement.latency_ns
    (('rack0-server0-gpu0', 'rack0-server0-gpu1'), 60000000, 120800000)
    >>> placement.throughput > chat.throughput
    True
    """

    request: str
    """Name of the deployment."""
    service: str
    service_digest: str
    """`Service.digest` of what was placed."""
    stages: tuple[ServiceStage, ...]
    circuits: tuple[Circuit, ...]
    cycle_ns: int
    latency_ns: int
    """Time between inputs, and from input to output: equations (3) and (2) of RAMPA."""
    allocator: str = ""
    seconds: float = 0.0
    """Time of the search."""
    status: Status = "no better found"
    """How the search for it ended, see `tvm_sched_runtime.search_budget.Status`."""

    @property
    def throughput(self) -> float:
        """Inputs a second: equation (1)."""
        return 1e9 / self.cycle_ns if self.cycle_ns else float("inf")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that the placement holds."""
        return tuple(stage.gpu for stage in self.stages)

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The fibres that the placement holds."""
        return tuple(hop for circuit in self.circuits for hop in circuit.hops)


class Allocation(Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The services that run on a cluster.

    ``docs/formats/cluster.md`` describes its document, whose form `from_json` checks; `verify` checks the allocation itself.

    Examples
    --------
    >>> from tvm_sched_cluster import Allocation
    >>> allocation = state.allocation
    >>> allocation.save("allocation.json")
    >>> Allocation.load("allocation.json") == allocation
    True
    """

    kept_as = ("allocation", FORMAT, VERSION)

    cluster: str
    """`Cluster.digest`."""
    placements: tuple[ServicePlacement, ...]
    failed: tuple[str, ...] = ()
    """GPUs and links that have failed and hold nothing."""
    waiting: tuple[ServiceRequest, ...] = ()
    """Services that a failure ended and that have found no place since."""
