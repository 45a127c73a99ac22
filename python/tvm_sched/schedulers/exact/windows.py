"""Large neighbourhood search: a window of a finished schedule is solved anew with CP-SAT while all else stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from random import Random

from ...problem import FORBIDDEN, HOST, Problem
from ...schedule.simulator import price
from ..common.greedy import tails
from ..common.native import shortfall
from ..common.partial import Event, PartialSchedule, Run
from ..common.search import Array, Searches, events_of, rows_of, schedule_index, sequence_of
from .model import Limits, solve_submodel
from .variables import After, Submodel


class Window(Enum):
    """Which operators are freed. Those between them in time may change their order, not their devices."""

    TIME = "operators that follow each other in time"
    PAIR = "of such operators those of two devices, for these two"
    CONNECTED = "operators that are joined in the graph, near each other in time"


MOST_DEVICES = 4
"""Devices that each freed operator may choose from, its own among them."""

SPREAD = 2
"""Operators of a window in time for each that is freed, at most."""

FIRST_SIZE, LEAST_SIZE, MOST_SIZE = 16, 6, 60
"""Operators that a window frees: at first, and within these limits."""

GROWTH = 1.15
"""Factor by which windows grow when one is proved to hold nothing better, and shrink when the work did not suffice."""

WORK_OF_WINDOW, WORK_OF_PLACE = 0.01, 0.0005
"""Deterministic seconds that count for making a window's program, and for each place that an operator may have."""


@dataclass(frozen=True)
class Cut:
    """A finished schedule in three parts; what is inside is decided anew.

    Attributes
    ----------
    before, inside, behind : list of Event
        Each in the order of starts.
    """

    before: list[Event]
    inside: list[Event]
    behind: list[Event]


def cut(problem: Problem, events: list[Event], first: int, last: int, by_need: bool = True) -> Cut:
    """Cut a schedule before its run number ``first`` and after run number ``last``, counted in the order of starts.

    Parameters
    ----------
    problem : Problem
    events : list of Event
        In the order of their starts.
    first, last : int
    by_need : bool
        Host tensors come in the part that first needs them; else in the one in which they start. What operators make is
        copied in the part in which that starts, or inside where it is made there: another device may make it then.
    """
    index = problem.graph.index
    position = [i for i, event in enumerate(events) if isinstance(event, Run)]
    made = {events[i].operator: (r >= first) + (r > last) for r, i in enumerate(position)}  # type: ignore[union-attr]
    used: dict[tuple[int, int], int] = {}
    parts: tuple[list[Event], ...] = ([], [], [])
    for i, event in reversed(list(enumerate(events))):
        if isinstance(event, Run):
            part = made[event.operator]
            for t in index.inputs[event.operator]:
                if not (event.direct and index.producer[t] < 0):
                    used[t, event.device] = part
        else:
            part = (i >= position[first]) + (i > position[last])
            if index.producer[event.tensor] >= 0:
                part = 1 if made[index.producer[event.tensor]] == 1 else part
            elif by_need:
                part = used.get((event.tensor, event.device), part)
            used[event.tensor, event.source] = min(part, used.get((event.tensor, event.source), part))
        parts[part].append(event)
    return Cut(parts[0][::-1], parts[1][::-1], parts[2][::-1])


def what_follows(problem: Problem, behind: list[Event]) -> After:
    """What fixed events ask of those before them: the longest paths to the end of the run."""
    index = problem.graph.index
    needed: dict[tuple[int, int], int] = {}
    device: dict[int, int] = {}
    channel: dict[int, int] = {}
    for event in reversed(behind):
        if isinstance(event, Run):
            o, d, direct = event
            ns = int((problem.costs.direct_ns if direct else problem.costs.operator_ns)[o, d])
            made = [needed.pop((t, d), 0) for t in index.outputs[o]]
            total = ns + max([device.get(d, 0), *made])
            if direct and (route := problem.topology.route(HOST, d)) is not None:
                bus_ns = problem.host_read_ns(o, d)
                total = max([total, *(bus_ns + channel.get(c, 0) for c in route.channels)])
                channel.update(dict.fromkeys(route.channels, total))
            device[d] = total
            in_place = direct or problem.reads_host_in_place(d)
            reads = [(t, d) for t in index.inputs[o] if not (in_place and index.producer[t] < 0)]
        else:
            t, source, d = event
            channels = problem.route(source, d).channels
            ns = problem.load_ns(t, d) if source == HOST else problem.copy_ns(t, source, d)
            total = ns + max([needed.pop((t, d), 0), *(channel.get(c, 0) for c in channels)])
            channel.update(dict.fromkeys(channels, total))
            in_place = source == HOST or (problem.reads_host_in_place(source) and index.producer[t] < 0)
            reads = [] if in_place else [(t, source)]
        for read in reads:
            needed[read] = max(needed.get(read, 0), total)
    return After(needed, device, channel)


Places = dict[int, frozenset[tuple[int, bool]]]


class WindowSearch:
    """Windows of a schedule, one after another, each solved for a run that ends earlier.

    Parameters
    ----------
    problem : Problem
    searches : Searches
    start : array, (events, 4)
        Sequence of a whole schedule without evictions, in the order of starts.
    latency_ns : int
        Its latency.
    memory_scale : float
        Share of each device's memory that may be used.
    seed : int

    Attributes
    ----------
    best, latency_ns
        The best schedule and its latency.
    work : float
        Deterministic seconds so far.
    """

    def __init__(
        self, problem: Problem, searches: Searches, start: Array, latency_ns: int, memory_scale: float, seed: int
    ) -> None:
        self.problem, self.latency_ns, self.work = problem, latency_ns, 0.0
        self._searches, self._scale, self._random = searches, memory_scale, Random(seed)
        self._empty, self._tail = PartialSchedule(problem, memory_scale), tails(problem)
        self._sizes = dict.fromkeys(Window, float(FIRST_SIZE))
        self._take(start)

    def _take(self, sequence: Array) -> None:
        self.best = sequence
        self._events = events_of(sequence)
        self._runs = [event for event in self._events if isinstance(event, Run)]
        self._position = {run.operator: i for i, run in enumerate(self._runs)}

    def step(self, limits: Limits) -> bool:
        """Solve one window; whether the schedule became better."""
        window = self._random.choice(list(Window))
        places = self._window(window, min(int(self._sizes[window]), len(self._runs)))
        self.work += WORK_OF_WINDOW + WORK_OF_PLACE * sum(map(len, places.values()))
        made = self._submodel(places)
        if made is None:
            return False
        parts, submodel, hint = made
        answer = solve_submodel(submodel, hint, limits)
        self.work += answer.work
        if answer.events is None:
            factor = GROWTH if answer.exhausted else 1 / GROWTH
            self._sizes[window] = min(max(self._sizes[window] * factor, LEAST_SIZE), MOST_SIZE)
            return False
        return self._accept(parts.before + answer.events + parts.behind)

    def _window(self, window: Window, size: int) -> Places:
        """Where the operators of a random window may run, those too that only lie between."""
        reach = min(size if window is Window.TIME else SPREAD * size, len(self._runs))
        first = self._random.randint(0, len(self._runs) - reach)
        runs = self._runs[first : first + reach]
        everywhere = range(len(self.problem.topology.devices))
        if window is Window.PAIR:
            pair = self._random.sample(everywhere, min(2, len(everywhere)))
            freed = {run.operator: pair for run in runs if run.device in pair}
        else:
            chosen = [run.operator for run in runs]
            if window is Window.CONNECTED:
                chosen = self._joined(chosen, size)
            freed = {o: self._devices_near(o) for o in chosen}
        if not freed:
            return {}
        low, high = min(map(self._position.__getitem__, freed)), max(map(self._position.__getitem__, freed))
        between = {run.operator: frozenset([(run.device, run.direct)]) for run in self._runs[low : high + 1]}
        return between | {o: self._ways(o, devices) for o, devices in freed.items()}

    def _joined(self, operators: list[int], size: int) -> list[int]:
        """Up to ``size`` of the operators, joined to a random one of them by edges between them."""
        index, allowed = self.problem.graph.index, set(operators)
        found = [self._random.choice(operators)]
        seen = set(found)
        for o in found:
            beside = [n for n in (*index.predecessors[o], *index.successors[o]) if n in allowed and n not in seen]
            self._random.shuffle(beside)
            beside = beside[: size - len(found)]
            seen.update(beside)
            found += beside
        return found

    def _devices_near(self, o: int) -> list[int]:
        """An operator's device, those of its neighbours in the graph, and random ones, `MOST_DEVICES` at most."""
        index, count = self.problem.graph.index, len(self.problem.topology.devices)
        near = [self._runs[self._position[n]].device for n in (o, *index.predecessors[o], *index.successors[o])]
        devices = list(dict.fromkeys(near + self._random.sample(range(count), count)))
        return devices[:MOST_DEVICES]

    def _ways(self, o: int, devices: Iterable[int]) -> frozenset[tuple[int, bool]]:
        modes = ((False, self.problem.costs.operator_ns), (True, self.problem.costs.direct_ns))
        return frozenset((d, direct) for d in devices for direct, ns in modes if ns[o, d] != FORBIDDEN)

    def _submodel(self, places: Places) -> tuple[Cut, Submodel, PartialSchedule] | None:
        """The program of a window, and the events that it stands for now; None where it cannot be cut out without loss."""
        positions = [self._position[o] for o in places]
        for by_need in (True, False) if positions else ():
            parts = cut(self.problem, self._events, min(positions), max(positions), by_need)
            after, state = what_follows(self.problem, parts.behind), self._empty.clone()
            for event in parts.before:
                state.append(event)
            now = state.clone()
            for event in parts.inside:
                now.append(event)
            if _end_of_run(now, after) <= self.latency_ns:
                break
        else:
            return None
        base = min([*state.device_free, *state.channel_free])
        submodel = Submodel(
            state=state,
            operators=[self._runs[i].operator for i in sorted(positions)],
            tail={o: self._tail[o] for o in places},
            horizon=self.latency_ns - base,
            base=base,
            places=places,
            after=after,
            latest=self.latency_ns - 1,
        )
        return (parts, submodel, now) if submodel.fits_solver else None

    def _accept(self, events: list[Event]) -> bool:
        """Play the new schedule, with what no longer fits together repaired, and take it where it is better."""
        played = self._searches.improve(rows_of(events), self._scale, 0, FORBIDDEN)
        if not len(played.best) or played.latency_ns >= self.latency_ns:
            return False
        index = schedule_index(played.best)
        times = price(self.problem, index)
        if times.latency_ns >= self.latency_ns or shortfall(self.problem, times)[0] > 0:
            return False
        self.latency_ns = times.latency_ns
        self._take(sequence_of(self.problem, index))
        return True


def _end_of_run(state: PartialSchedule, after: After) -> int:
    """Latency of a state's events and the fixed ones behind it."""
    ends = [state.latency]
    ends += [state.at[pair] + ns for pair, ns in after.needed.items()]
    ends += [state.device_free[d] + ns for d, ns in after.device.items()]
    ends += [state.channel_free[c] + ns for c, ns in after.channel.items()]
    return max(ends)
