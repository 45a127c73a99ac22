"""A partial schedule in plain Python, written from ``docs/model.md`` alone: what the one in C++ is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm_sched.schedulers.common.events import Event, Move, Run
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem


@dataclass
class Extension:
    """What it takes to run one operator somewhere: the moves before it, and when it would end."""

    end: int
    moves: list[Move]
    run: Run


@dataclass
class PartialSchedule:
    """Times, places and memory after the events so far."""

    problem: Problem
    memory_scale: float = 1.0
    """Share of each device's memory that may be used. Below one when a first attempt held too much at some moment: what
    is counted here goes by the order of events, not by time."""
    device_free: list[int] = field(init=False)
    channel_free: list[int] = field(init=False)
    """When each device and channel has done all that was given to it, in nanoseconds."""
    at: dict[tuple[int, int], int] = field(init=False, default_factory=dict)
    """When each tensor is on each device to which it was brought."""
    holders: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)
    """Devices on which a tensor is, in the order in which it got there."""
    placed: list[int] = field(init=False)
    """Device of each operator, -1 while it has none."""
    events: list[Event] = field(init=False, default_factory=list)
    ends: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        topology, index = self.problem.topology, self.problem.graph.index
        devices = range(len(topology.devices))
        self.device_free = [0] * len(topology.devices)
        self.channel_free = [0] * len(topology.channels)
        self.placed = [-1] * len(index.inputs)
        self._memory = [int(device.memory * self.memory_scale) for device in topology.devices]
        self._parameters = [0] * len(topology.devices)
        self._live = [0] * len(topology.devices)
        self._peak = [0] * len(topology.devices)
        kept = set(index.graph_outputs)
        self._readers_left = [len(readers) + (t in kept) for t, readers in enumerate(index.consumers)]
        self._in_place = [self.problem.reads_host_in_place(d) for d in devices]
        self._sharing = tuple(d for d in devices if self._in_place[d])
        self._down = [topology.route(HOST, d) for d in devices]
        self._transit = [self._transits(d) for d in devices]
        operator_ns, direct_ns = self.problem.costs.operator_ns.tolist(), self.problem.costs.direct_ns.tolist()
        self._ns = (operator_ns, direct_ns)
        self._trips: dict[Move, tuple[int, tuple[int, ...]]] = {}

    def clone(self) -> PartialSchedule:
        """An independent copy."""
        import copy

        twin = copy.copy(self)
        for name in (
            "device_free",
            "channel_free",
            "placed",
            "events",
            "ends",
            "_parameters",
            "_live",
            "_peak",
            "_readers_left",
        ):
            setattr(twin, name, list(getattr(self, name)))
        twin.at = dict(self.at)
        twin.holders = dict(self.holders)
        return twin

    def _transits(self, device: int) -> list[int]:
        """Neighbours through which a parameter may come: two on each other bus, nearest for the largest tensor."""
        topology = self.problem.topology
        down = self._down[device]
        if down is None:
            return []
        buses = {c for route in self._down if route for c in route.channels}
        largest = max(self.problem.graph.index.size, default=0)
        fastest: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for s, other in enumerate(self._down):
            path = topology.route(s, device) if s != device else None
            if other is None or path is None or other.channels == down.channels or buses & set(path.channels):
                continue
            fastest.setdefault(other.channels, []).append((path.nanoseconds(largest), s))
        return [s for found in fastest.values() for _, s in sorted(found)[:2]]

    @property
    def transits(self) -> list[list[int]]:
        """Neighbours through which a parameter may be loaded into each device (parallel transmission)."""
        return self._transit

    @property
    def latency(self) -> int:
        """End of the last kernel so far, in nanoseconds."""
        return max(self.device_free, default=0)

    def needs(self, operator: int, device: int, direct: bool) -> list[int]:
        """Tensors that must still be brought to ``device`` before ``operator`` can run there."""
        return [t for t in self.reads(Run(operator, device, direct)) if (t, device) not in self.at]

    def sources(self, tensor: int) -> tuple[int, ...]:
        """Devices from which a tensor can be copied: those to which it came, and those that share host memory with it."""
        held = self.holders.get(tensor, ())
        return held if self.problem.graph.index.producer[tensor] >= 0 else (*held, *self._sharing)

    def reads(self, run: Run) -> list[int]:
        """Tensors that must come to a run's device before it: not those that it reads in host memory."""
        index = self.problem.graph.index
        in_place = run.direct or self._in_place[run.device]
        return [t for t in index.inputs[run.operator] if not (in_place and index.producer[t] < 0)]

    def starts(self) -> list[int]:
        """When each event begins."""
        starts = []
        for event, end in zip(self.events, self.ends, strict=True):
            if isinstance(event, Run):
                starts.append(end - self._ns[event.direct][event.operator][event.device])
            else:
                starts.append(end - self._trip(event)[0])
        return starts

    def fits(self) -> bool:
        """Whether every device has room for what was brought to it; by the order of events, like `room`."""
        return all(p + k <= m for p, k, m in zip(self._parameters, self._peak, self._memory, strict=True))

    def extension(self, operator: int, device: int, direct: bool) -> Extension | None:
        """The earliest end of ``operator`` there, with each missing tensor on its fastest way; None where impossible.

        Where a neighbour lacks the memory to pass parameters on, they are loaded straight away.
        """
        extension = self._extension(operator, device, direct, self._transit[device])
        if extension is not None and self._shortfall(extension.moves, extension.run) > 0 and self._transit[device]:
            extension = self._extension(operator, device, direct, [])
        return extension if extension is not None and self._shortfall(extension.moves, extension.run) <= 0 else None

    def _extension(self, operator: int, device: int, direct: bool, transits: list[int]) -> Extension | None:
        ns = self._ns[direct][operator][device]
        if ns == FORBIDDEN:
            return None
        channel: dict[int, int] = {}
        ready = self.device_free[device]
        for t in self.reads(Run(operator, device, direct)):
            ready = max(ready, self.at.get((t, device), 0))
        moves: list[Move] = []
        for t in self.needs(operator, device, direct):
            arrival, way = self._fastest_way(t, device, channel, transits)
            if way is None:
                return None
            for move in way:
                self._advance(move, channel)
            moves += way
            ready = max(ready, arrival)
        if direct and (route := self._down[device]) is not None:
            ready = max(ready, *(channel.get(c, self.channel_free[c]) for c in route.channels))
        run = Run(operator, device, direct)
        return Extension(ready + ns, moves, run)

    def _fastest_way(
        self, t: int, device: int, channel: dict[int, int], transits: list[int]
    ) -> tuple[int, list[Move] | None]:
        """Earliest arrival of ``t`` and the moves that bring it; ``channel`` overrides free times of channels."""
        index, route = self.problem.graph.index, self.problem.topology.route
        best, way = FORBIDDEN, None
        size = index.size[t]

        def free(channels: tuple[int, ...]) -> int:
            return max([channel.get(c, self.channel_free[c]) for c in channels], default=0)

        down = self._down[device]
        if index.producer[t] < 0 and down is not None:
            best, way = free(down.channels) + down.nanoseconds(size), [Move(t, HOST, device)]
        for s in self.sources(t):
            if s != device and (path := route(s, device)) is not None:
                arrival = max(self.at.get((t, s), 0), free(path.channels)) + path.nanoseconds(size)
                if arrival < best:
                    best, way = arrival, [Move(t, s, device)]
        if index.producer[t] < 0:
            for s in transits:
                first, path = self._down[s], route(s, device)
                if (t, s) in self.at or first is None or path is None:
                    continue
                loaded = free(first.channels) + first.nanoseconds(size)
                arrival = max(loaded, free(path.channels)) + path.nanoseconds(size)
                if arrival < best:
                    best, way = arrival, [Move(t, HOST, s), Move(t, s, device)]
        return best, way

    def _advance(self, move: Move, channel: dict[int, int]) -> None:
        """Occupy the channels of a planned move; the arrival at a transit device is the channel's new free time."""
        route = self.problem.route(move.source, move.device)
        ready = 0 if move.source == HOST else self.at.get((move.tensor, move.source), 0)
        if move.source not in (HOST, *self.sources(move.tensor)):
            first = self._down[move.source]
            ready = max(channel.get(c, 0) for c in first.channels) if first else 0
        start = max([ready, *(channel.get(c, self.channel_free[c]) for c in route.channels)])
        for c in route.channels:
            channel[c] = start + route.nanoseconds(self.problem.graph.index.size[move.tensor])

    def _shortfall(self, moves: list[Move], run: Run) -> int:
        """Bytes by which memory would not suffice for these events; 0 or less where it does."""
        index = self.problem.graph.index
        parameters: dict[int, int] = {}
        activations: dict[int, int] = {}
        for move in moves:
            held = parameters if index.producer[move.tensor] < 0 else activations
            held[move.device] = held.get(move.device, 0) + index.size[move.tensor]
        activations[run.device] = activations.get(run.device, 0) + sum(
            index.size[t] for t in index.outputs[run.operator]
        )
        short = -1
        for d in {*parameters, *activations}:
            peak = max(self._peak[d], self._live[d] + activations.get(d, 0))
            short = max(short, self._parameters[d] + parameters.get(d, 0) + peak - self._memory[d])
        return short

    def place(self, extension: Extension) -> None:
        """Append an extension's events."""
        for move in extension.moves:
            self.append(move)
        self.append(extension.run)

    def append(self, event: Event) -> int:
        """Append one event whose inputs are there; returns its end."""
        end = self._run(event) if isinstance(event, Run) else self._move(event)
        self.events.append(event)
        self.ends.append(end)
        return end

    def _move(self, move: Move) -> int:
        t, source, device = move
        ns, channels = self._trip(move)
        start = self.at.get((t, source), 0)
        for c in channels:
            if self.channel_free[c] > start:
                start = self.channel_free[c]
        end = start + ns
        for c in channels:
            self.channel_free[c] = end
        self._arrive(t, device, end)
        return end

    def _trip(self, move: Move) -> tuple[int, tuple[int, ...]]:
        """Time and channels of a move; looked up once, whatever clone asks."""
        trip = self._trips.get(move)
        if trip is None:
            route = self.problem.route(move.source, move.device)
            trip = self._trips[move] = route.nanoseconds(self.problem.graph.index.size[move.tensor]), route.channels
        return trip

    def _run(self, run: Run) -> int:
        o, device, direct = run
        index = self.problem.graph.index
        start = max([self.device_free[device], *(self.at[t, device] for t in self.reads(run))])
        if direct and (route := self._down[device]) is not None:
            start = max([start, *(self.channel_free[c] for c in route.channels)])
            for c in route.channels:
                self.channel_free[c] = start + self.problem.host_read_ns(o, device)
        end = start + self._ns[direct][o][device]
        self.device_free[device] = end
        self.placed[o] = device
        for t in index.outputs[o]:
            self._arrive(t, device, end)
        for t in index.inputs[o]:
            self._readers_left[t] -= 1
        for t in (*index.inputs[o], *index.outputs[o]):
            if self._readers_left[t] == 0 and index.producer[t] >= 0:
                for d in self.holders.get(t, ()):
                    self._live[d] -= index.size[t]
        return end

    def _arrive(self, t: int, device: int, when: int) -> None:
        index = self.problem.graph.index
        self.at[t, device] = when
        self.holders[t] = (*self.holders.get(t, ()), device)
        if index.producer[t] < 0:
            self._parameters[device] += index.size[t]
        else:
            self._live[device] += index.size[t]
            self._peak[device] = max(self._peak[device], self._live[device])
