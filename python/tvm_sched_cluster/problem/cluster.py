"""`Cluster`: racks of servers with GPUs of several kinds, and the switches, links and fibres between them."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from tvm_sched_runtime.checks import require_not_negative, require_positive
from tvm_sched_runtime.errors import TopologyError
from tvm_sched_runtime.files import content_digest

MOST_GPUS = MOST_FIBRES = 200_000
"""Most GPUs of a cluster, and most fibres of all its links: each has a record of its own."""


class GpuKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of GPU.

    Examples
    --------
    >>> GpuKind("L4", flops=30.3e12, memory=24 * 10**9, memory_bandwidth=300e9).name
    'L4'
    """

    name: str
    flops: float
    """Floating-point operations a second."""
    memory: int
    """Bytes."""
    memory_bandwidth: float
    """Bytes a second."""
    transfer_delay: float = 0.0
    """Seconds that a GPU adds to each transfer, at either end."""
    model: str = ""
    """Product."""


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch; ``delay`` is the time in seconds that a transfer takes to pass it.

    Examples
    --------
    >>> Switch("sw0", delay=30e-9)
    Switch(name='sw0', delay=3e-08)
    """

    name: str
    delay: float = 0.0


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fibres between two switches, each of which carries one circuit.

    Examples
    --------
    >>> Link(("sw0", "sw1"), bandwidth=1.25e9, fibres=4).name
    'sw0-sw1'
    """

    switches: tuple[str, str]
    bandwidth: float
    """Bytes a second of one fibre."""
    delay: float = 0.0
    """Propagation in seconds."""
    fibres: int = 1

    @property
    def name(self) -> str:
        """The two switches, as error messages and files name it."""
        return "-".join(self.switches)


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``gpus`` GPUs of one kind that fail together.

    Examples
    --------
    >>> Server("rack0-server0", kind="L4", gpus=8)
    Server(name='rack0-server0', kind='L4', gpus=8)
    """

    name: str
    kind: str
    gpus: int


class Rack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Servers whose GPUs have a link each to the rack's switch.

    Examples
    --------
    >>> Rack("rack0", switch="sw0", servers=(Server("rack0-server0", "L4", gpus=8),), bandwidth=1.25e9).servers
    (Server(name='rack0-server0', kind='L4', gpus=8),)
    """

    name: str
    switch: str
    servers: tuple[Server, ...]
    bandwidth: float
    delay: float = 0.0
    """Bandwidth (bytes a second) and delay (seconds) of the link between a GPU and the switch."""


class Gpu(NamedTuple):
    """A GPU: its name, and positions of its kind, rack and pool.

    Examples
    --------
    >>> cluster.gpus[0]
    Gpu(name='rack0-server0-gpu0', kind=0, rack=0, pool=0, server='rack0-server0')
    """

    name: str
    kind: int
    rack: int
    pool: int
    server: str


class Pool(NamedTuple):
    """The GPUs of one kind in one rack, which are all alike.

    Examples
    --------
    >>> cluster.pools[0]
    Pool(kind=0, rack=0, gpus=(0, 1))
    """

    kind: int
    rack: int
    gpus: tuple[int, ...]


class Digested(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Base of the inputs of a placement, which are told apart by the digest of their content."""

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that placements depend on."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """`content` as JSON."""
        return msgspec.json.encode(msgspec.to_builtins(self.content)).decode()

    @cached_property
    def digest(self) -> str:
        """Hash of `text`."""
        return content_digest(self.text.encode())


class Cluster(Digested, frozen=True, forbid_unknown_fields=True):
    """GPUs of several kinds in racks, joined by circuit switches.

    Raises
    ------
    TopologyError
        A name twice, something named that is not there, a bandwidth or number that is not above 0; says where.

    Examples
    --------
    >>> len(cluster.gpus), [kind.name for kind in cluster.kinds]
    (4, ['L4'])
    """

    name: str
    kinds: tuple[GpuKind, ...]
    switches: tuple[Switch, ...]
    racks: tuple[Rack, ...]
    links: tuple[Link, ...] = ()
    source: str = ""
    """Source of the figures."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that placements depend on: not name and source."""
        return self.kinds, self.switches, self.racks, self.links

    @cached_property
    def kind_id(self) -> dict[str, int]:
        """Position of each kind."""
        return {kind.name: k for k, kind in enumerate(self.kinds)}

    @cached_property
    def switch_id(self) -> dict[str, int]:
        """Position of each switch."""
        return {switch.name: s for s, switch in enumerate(self.switches)}

    @cached_property
    def link_id(self) -> dict[str, int]:
        """Position of each link, by its name in either direction."""
        forward = {link.name: i for i, link in enumerate(self.links)}
        return {"-".join(reversed(link.switches)): i for i, link in enumerate(self.links)} | forward

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """GPUs by kind and rack."""
        return self._inside[1]

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, rack after rack, server after server; named ``<server>-gpu<i>``."""
        return self._inside[0]

    @cached_property
    def gpu_id(self) -> dict[str, int]:
        """Position of each GPU."""
        return {gpu.name: g for g, gpu in enumerate(self.gpus)}

    @cached_property
    def servers(self) -> dict[str, tuple[int, ...]]:
        """Positions of the GPUs of each server."""
        gpus_of: dict[str, list[int]] = {}
        for g, gpu in enumerate(self.gpus):
            gpus_of.setdefault(gpu.server, []).append(g)
        return {name: tuple(members) for name, members in gpus_of.items()}

    @cached_property
    def _inside(self) -> tuple[tuple[Gpu, ...], tuple[Pool, ...]]:
        gpus: list[Gpu] = []
        members: dict[tuple[int, int], list[int]] = {}
        pool_id: dict[tuple[int, int], int] = {}
        for r, rack in enumerate(self.racks):
            for server in rack.servers:
                key = (self.kind_id[server.kind], r)
                pool = pool_id.setdefault(key, len(pool_id))
                for i in range(server.gpus):
                    members.setdefault(key, []).append(len(gpus))
                    gpus.append(Gpu(f"{server.name}-gpu{i}", key[0], r, pool, server.name))
        return tuple(gpus), tuple(Pool(kind, rack, tuple(own)) for (kind, rack), own in members.items())


def _check(cluster: Cluster) -> None:
    gpus = sum(server.gpus for rack in cluster.racks for server in rack.servers)
    if gpus > MOST_GPUS:
        raise TopologyError(f"cluster {cluster.name!r} has {gpus} GPUs; at most {MOST_GPUS} are allowed")
    fibres = sum(link.fibres for link in cluster.links)
    if fibres > MOST_FIBRES:
        raise TopologyError(f"cluster {cluster.name!r} has {fibres} fibres; at most {MOST_FIBRES} are allowed")
    for what, names in (
        ("kind of GPU", [kind.name for kind in cluster.kinds]),
        ("switch", [switch.name for switch in cluster.switches]),
        ("rack", [rack.name for rack in cluster.racks]),
        ("server", [server.name for rack in cluster.racks for server in rack.servers]),
        ("link", ["-".join(sorted(link.switches)) for link in cluster.links]),
    ):
        for name, count in Counter(names).items():
            if count > 1 or not name:
                raise TopologyError(f"{what} {name!r} stands there {count} times; each needs a name of its own")
    if not any(rack.servers for rack in cluster.racks):
        raise TopologyError(f"cluster {cluster.name!r} has no GPUs")
    for kind in cluster.kinds:
        for field in ("flops", "memory", "memory_bandwidth"):
            require_positive(f"{field} of GPU kind {kind.name!r}", getattr(kind, field), TopologyError)
        require_not_negative(f"transfer_delay of GPU kind {kind.name!r}", kind.transfer_delay, TopologyError)
    for switch in cluster.switches:
        require_not_negative(f"delay of switch {switch.name!r}", switch.delay, TopologyError)
    for link in cluster.links:
        for end in link.switches:
            _known("switch", end, cluster.switch_id, f"link {link.name!r}")
        if link.switches[0] == link.switches[1]:
            raise TopologyError(f"link {link.name!r} joins a switch with itself")
        _path(f"link {link.name!r}", link.bandwidth, link.delay)
        require_positive(f"fibres of link {link.name!r}", link.fibres, TopologyError)
    for rack in cluster.racks:
        _known("switch", rack.switch, cluster.switch_id, f"rack {rack.name!r}")
        _path(f"rack {rack.name!r}", rack.bandwidth, rack.delay)
        for server in rack.servers:
            _known("kind of GPU", server.kind, cluster.kind_id, f"server {server.name!r}")
            require_positive(f"gpus of server {server.name!r}", server.gpus, TopologyError)


def _path(where: str, bandwidth: float, delay: float) -> None:
    require_positive(f"bandwidth of {where}", bandwidth, TopologyError)
    if bandwidth < 1:
        raise TopologyError(f"bandwidth of {where} is {bandwidth!r} bytes a second; 1 or more is allowed")
    require_not_negative(f"delay of {where}", delay, TopologyError)


def _known(what: str, name: str, known: dict[str, int], where: str) -> None:
    if name not in known:
        raise TopologyError(f"{where} names {what} {name!r}, which is not there; there are {', '.join(known)}")
