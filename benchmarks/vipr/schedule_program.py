"""A scheduling problem as an integer program, and lemmas of evidence as derivations from it.

``docs/proofs/vipr.md`` lists the constraints and says why each holds in every schedule. Their labels there are the labels in
the file. Which lemmas are translated is listed there, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

from tvm_sched_check.document import HOST, Problem, Refused, count
from tvm_sched_check.together import Together

from .integer_program import EQUAL, GREATER, LESS, IntegerProgram, Number, Terms
from .placement_cases import Cases

NORMAL, DIRECT = "normal", "direct"
Place = tuple[int, str]
"""A device and a mode."""
Proved = tuple[int, int]
"""Nanoseconds, and the row that says so."""


class Window(NamedTuple):
    """The time from the first begin to the last end of operators."""

    operators: list[int]
    devices: list[int]
    """The row of each device: its operators fit in between."""
    around: Terms
    """Rows that say how much time passes before and after at least."""


class ScheduleProgram:
    """Variables and constraints of every schedule of at most ``horizon`` nanoseconds, and rows derived from them."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        self.problem, self.horizon, self.program = problem, horizon, IntegerProgram()
        add, operators = self.program.variable, range(len(problem.o))
        self.latency, self.ends = add("L"), [add(f"C_{o}") for o in operators]
        self.times: list[dict[Place, int]] = []
        for o in operators:
            modes = ((NORMAL, problem.normal[o]), (DIRECT, problem.direct[o]))
            self.times.append({(d, mode): ns for mode, row in modes for d, ns in enumerate(row) if ns is not None})
        everywhere = range(len(problem.devices))
        best: list[list[Any]] = [[min(problem.times(o, d), default=inf) for d in everywhere] for o in operators]
        self.together = problem.concurrency is not None
        self.busy = Together(problem).occupied(best)
        self.on = [{place: add(f"y_{o}_{place[0]}_{place[1]}") for place in self.times[o]} for o in operators]
        self.delays: dict[tuple[int | None, int | None], Proved] = {}
        """The best that was derived between the ends of two operators; None: the start of the run, its end."""
        self._durations: dict[int, Proved] = {}
        self.cases = Cases(self)
        self._lemmas = 0
        self._add_constraints()

    def _add_constraints(self) -> None:
        p, rule = self.problem, self.program.constraint
        rule("horizon", {self.latency: 1}, self.horizon, LESS)
        self.last = [rule(f"last_{o}", {self.latency: 1, end: -1}) for o, end in enumerate(self.ends)]
        self.first = [rule(f"first_{o}", self.start(o)) for o in range(len(p.o))]
        self.placed = [rule(f"placed_{o}", dict.fromkeys(on.values(), 1), 1, EQUAL) for o, on in enumerate(self.on)]
        self.least = {y: rule(f"least_{y}", {y: 1}) for on in self.on for y in on.values()}
        self.edges = {
            (a, o): rule(f"edge_{a}_{o}", self.start(o) | {self.ends[a]: -1})
            for o in range(len(p.o))
            for a in p.before[o]
        }
        everything = range(len(p.o))
        self.devices = [
            rule(f"device_{d}", {self.latency: 1} | self.work(everything, d)) for d in range(len(p.devices))
        ]
        on_bus = [d for d in range(len(p.devices)) if (HOST, d) in p.routes]
        links = [(a, b) for a in range(len(p.devices)) for b in on_bus if p.shares[a] and (a, b) in p.routes]
        bypass = any(p.routes[a, b].channels != p.routes[HOST, b].channels for a, b in links)
        self.on_bus = [] if bypass else on_bus
        self.waiting = [[y for (d, mode), y in on.items() if mode == NORMAL and d in self.on_bus] for on in self.on]
        self.arrivals: list[Proved | None] = []
        for o in everything:
            loads = [
                min(p.routes[HOST, d].ns(p.size[t]) for d in self.on_bus) for t in p.host_inputs[o] if self.waiting[o]
            ]
            after_load = {y: self.start(o)[y] - max(loads, default=0) for y in self.waiting[o]}
            row = rule(f"load_{o}", self.start(o) | after_load) if loads else 0
            self.arrivals.append((max(loads), row) if loads else None)

    def start(self, o: int) -> dict[int, int]:
        """Return the start of an operator as coefficients: its end less its time."""
        return {self.ends[o]: 1} | {y: -self.times[o][place] for place, y in self.on[o].items()}

    def work(self, operators: Iterable[int], d: int) -> dict[int, Number]:
        """Return minus the time that operators occupy a device, as coefficients."""
        return {
            y: -(self.busy[o][d] if self.together else self.times[o][place])
            for o in operators
            for place, y in self.on[o].items()
            if place[0] == d
        }

    def duration(self, o: int) -> Proved:
        """Return the least time of an operator."""
        if o not in self._durations:
            least = min(self.times[o].values())
            terms = {self.placed[o]: least}
            terms |= {self.least[y]: self.times[o][place] - least for place, y in self.on[o].items()}
            self._durations[o] = least, self.program.combine(f"time_{o}", terms)
        return self._durations[o]

    def over_places(self, terms: Counter[int]) -> Terms:
        """Complete a combination by rows that remove the variables of places: each operator at its cheapest place."""
        left = Counter[int]()
        for number, weight in terms.items():
            for variable, value in self.program.row(number).coefficients.items():
                left[variable] += weight * value  # type: ignore[assignment]
        complete = Counter(terms)
        for o, on in enumerate(self.on):
            cost = {y: -left[y] for y in on.values()}
            if any(cost.values()):
                complete[self.placed[o]] += min(cost.values())
                complete.update({self.least[y]: value - min(cost.values()) for y, value in cost.items()})
        return complete

    def end(self, o: int, ready: int, begins: Terms, name: str) -> Proved:
        """Return the least end of an operator whose start is at least ``ready``, as the rows ``begins`` together say.

        It waits for its host tensors, unless it runs where or how it needs no load.
        """
        time, arrival = self.duration(o), self.arrivals[o]
        simple = ready + time[0], {**begins, time[1]: 1}
        if arrival is None or ready >= arrival[0]:
            return simple[0], self.program.combine(name, simple[1])
        waits = self.waiting[o]
        at_once = {place: ns for place, ns in self.times[o].items() if self.on[o][place] not in waits}
        after_load = {place: ns for place, ns in self.times[o].items() if self.on[o][place] in waits}
        loaded = arrival[0] + min(after_load.values())
        if not at_once:
            terms = self.over_places(Counter({arrival[1]: 1}))
            return loaded, self.program.combine(name, terms)
        if min(loaded, ready + min(at_once.values())) <= simple[0]:
            return simple[0], self.program.combine(name, simple[1])
        high, low = (self.program.assume(f"{name}_{case}", waits, *how) for case, how in _CASES)
        least = min(after_load.values())
        terms = Counter({arrival[1]: 1, high: loaded})
        terms.update({self.least[self.on[o][place]]: ns - least for place, ns in after_load.items()})
        terms.update({self.least[self.on[o][place]]: ns for place, ns in at_once.items()})
        with_load = self.program.combine(f"{name}_loaded", terms)
        least = min(at_once.values())
        shortfall = max(0, least - min(after_load.values()))
        terms = Counter(begins)
        terms.update({self.placed[o]: least, low: -shortfall})
        terms.update({self.least[self.on[o][place]]: ns - least for place, ns in at_once.items()})
        terms.update({self.least[self.on[o][place]]: ns - least + shortfall for place, ns in after_load.items()})
        without = self.program.combine(f"{name}_at_once", terms)
        return min(loaded, ready + least), self.program.either(name, without, low, with_load, high)

    def prove(self, lemma: dict[str, Any]) -> int | None:
        """Derive a lemma, or what its translation gives of it; return the nanoseconds, None if it is not translated."""
        first, last = (self.problem.o[lemma[end]] if end in lemma else None for end in ("first", "last"))
        rules: dict[str, Callable[[int | None, int | None, dict[str, Any]], Proved | None]] = {
            "path": self._path, "work": self._device_work, "turns": self._turns, "bus": self._bus,
            "placement": self._placement,
        }  # fmt: skip
        derive = rules.get(lemma["rule"])
        self._lemmas += 1
        alone = lemma["rule"] in ("turns", "placement") or lemma.get("by") == "end"
        if derive is None or (self.together and alone):
            return None  # these rules need devices that run one operator at a time
        if (proved := derive(first, last, lemma)) is None:
            return None
        self.delays[first, last] = max(proved, self.delays.get((first, last), (-1, 0)))
        return proved[0]

    def bound(self) -> int:
        """Derive the strongest bound of the run that there is, as the last row; return its nanoseconds.

        It is no more than the horizon, since the rows say nothing of longer schedules.
        """
        self._lemmas += 1
        proved = max(self.delays.get((None, None), (0, 0)), self._path(None, None, {}))
        self.program.combine("bound", {proved[1]: 1}, round_up=True, most=self.horizon)
        return min(proved[0], self.horizon)

    def _path(self, first: int | None, last: int | None, lemma: dict[str, Any]) -> Proved:
        heads, tails = Paths(self, first, forward=True), Paths(self, last, forward=False)
        o = max((o for o in heads.ns if o in tails.ns), key=lambda o: heads.ns[o] + tails.ns[o])
        terms = {row: 1 for row in (heads.row(o), tails.row(o)) if row is not None}
        return heads.ns[o] + tails.ns[o], self.program.combine(f"path_{self._lemmas}", terms)

    def _device_work(self, first: int | None, last: int | None, lemma: dict[str, Any]) -> Proved | None:
        """Derive Lemma 2, or 3, of ``docs/proofs/device_work.md`` for the operators and weights of a lemma.

        If operators run together, a stage's work need not fit between starts and ends of its operators. Then heads and tails
        count nothing, and only lemmas of the whole run are derived.
        """
        name, weights = f"work_{self._lemmas}", [count(weight) for weight in lemma["multipliers"]]
        if not self.together:
            window = self._window(name, first, last, lemma["operators"], by_end=lemma["by"] == "end")
        elif first is last is None:
            window = Window([], self.devices, {})
        else:
            return None
        terms: Counter[int] = Counter(window.around)
        total = sum(weights)
        terms.update({window.devices[d]: Fraction(weight, total) for d, weight in enumerate(weights)})
        return self._rounded(name, self.over_places(terms))

    def _turns(self, first: int | None, last: int | None, lemma: dict[str, Any]) -> Proved:
        """Derive Lemma 5 of ``docs/proofs/device_work.md``: some device runs more than its share of equal numbers."""
        name, number = f"turns_{self._lemmas}", len(self.problem.devices)
        window = self._window(name, first, last, lemma["operators"], by_end=True)
        share = (len(window.operators) - 1) // number
        longest = sorted(window.operators, key=lambda o: self.duration(o)[0])[: share + 1]
        limit = self.duration(longest[-1])[0]
        on = [[y for o in window.operators for (at, _), y in self.on[o].items() if at == d] for d in range(number)]
        low, high = (
            [self.program.assume(f"{name}_{case}_{d}", on[d], sense, share + more) for d in range(number)]
            for case, sense, more in (("few", LESS, 0), ("many", GREATER, 1))
        )
        row = self.program.combine(
            f"{name}_none", {self.placed[o]: 1 for o in window.operators} | dict.fromkeys(low, -1)
        )
        for d in reversed(range(number)):
            terms: Counter[int] = Counter({window.devices[d]: 1, high[d]: limit})
            for o in window.operators:
                less = limit - self.duration(o)[0]
                if o in longest:
                    terms[self.placed[o]] -= less
                    terms.update({self.least[y]: less for (at, _), y in self.on[o].items() if at != d})
                else:
                    terms.update({self.least[y]: -less for (at, _), y in self.on[o].items() if at == d})
            many = self.program.combine(f"{name}_many_on_{d}", terms)
            row = self.program.either(f"{name}_from_{d}", row, low[d], many, high[d])
        return self._rounded(name, {row: 1} | dict(window.around))

    def _window(self, name: str, first: int | None, last: int | None, names: Iterable[str], *, by_end: bool) -> Window:
        """Add the times between which operators run. By end: only the last ``duration`` of each operator counts."""
        rule, operators = self.program.constraint, sorted(self.problem.o[each] for each in names)
        begin, end = self.program.variable(f"{name}_begin"), self.program.variable(f"{name}_end")
        short = {o: self.duration(o)[0] for o in operators}
        devices = []
        for d in range(len(self.problem.devices)):
            work: dict[int, Number] = self.work(operators, d)
            if by_end:
                work = {y: -short[o] for o in operators for (at, _), y in self.on[o].items() if at == d}
            devices.append(rule(f"{name}_device_{d}", {end: 1, begin: -1} | work))
        heads, tails = Paths(self, first, forward=True), Paths(self, last, forward=False)
        if by_end:
            starts = {o: ({begin: 1, self.ends[o]: -1}, -short[o], heads.proved(o)) for o in operators}
        else:
            starts = {
                o: ({begin: 1} | {v: -value for v, value in self.start(o).items()}, 0, heads.start(o))
                for o in operators
            }
        ends = {o: ({self.ends[o]: 1, end: -1}, 0, tails.proved(o)) for o in operators}
        around = {self._of_one(f"{name}_first", starts): 1, self._of_one(f"{name}_last", ends): 1}
        return Window(operators, devices, around)

    def _rounded(self, name: str, terms: Terms) -> Proved:
        row = self.program.combine(name, terms, round_up=True)
        return int(self.program.row(row).right), row

    def _of_one(self, name: str, defined: dict[int, tuple[dict[int, int], int, Proved | None]]) -> int:
        """Introduce a time that one of the operators defines, whichever it is; derive the least that all of them allow.

        For each operator: coefficients and a right-hand side that hold if it is the one, and what is known of it. The sum
        of both is derived for all cases.
        """
        derive = self.one_of(name, {o: (coefficients, right) for o, (coefficients, right, _) in defined.items()})
        return derive({o: None if known is None else known[1] for o, (*_, known) in defined.items()})

    def one_of(
        self, name: str, defined: dict[int, tuple[dict[int, int], int]]
    ) -> Callable[[Mapping[int, int | None]], int]:
        """Introduce a time that one of the operators defines; return what derives the least of it from rows of them."""
        rule, horizon = self.program.constraint, self.horizon
        chosen = {o: self.program.variable(f"{name}_is_{o}") for o in defined}
        self.least |= {y: rule(f"{name}_least_{o}", {y: 1}) for o, y in chosen.items()}
        one = rule(f"{name}_one", dict.fromkeys(chosen.values(), 1), 1, EQUAL)
        definitions = {
            o: rule(f"{name}_of_{o}", coefficients | {chosen[o]: -horizon}, right - horizon)
            for o, (coefficients, right) in defined.items()
        }

        def in_cases(operators: Sequence[int], among: int, known: Mapping[int, int | None]) -> int:
            """Derive it from the row ``among``, which says that one of these operators is the one."""
            if len(operators) == 1:
                o = operators[0]
                row = known[o]
                return self.program.combine(
                    f"{name}_if_{o}", {definitions[o]: 1, among: horizon} | ({} if row is None else {row: 1})
                )
            half = operators[: len(operators) // 2]
            label = f"{name}_case_{half[0]}_{operators[-1]}"
            high, low = (
                self.program.assume(f"{label}_{case}", [chosen[o] for o in half], *how) for case, how in _CASES
            )
            rest = self.program.combine(f"{label}_rest", {among: 1, low: -1})
            without = in_cases(operators[len(half) :], rest, known)
            return self.program.either(label, without, low, in_cases(half, high, known), high)

        return lambda known: in_cases(list(defined), one, known)

    def _placement(self, first: int | None, last: int | None, lemma: dict[str, Any]) -> Proved | None:
        """Derive a delay by cases over placements; None if they are too many, or one takes no longer than the path."""
        if first is None or last is None:
            return None
        heads, tails = Paths(self, first, forward=True).ns, Paths(self, last, forward=False).ns
        between = [o for o in self.problem.order if o in heads and o in tails and o != first]
        named = {self.problem.o[name] for name in lemma["operators"]}
        path = max(heads[o] + tails[o] for o in between)
        if lemma["ns"] <= path:
            return self._path(first, last, lemma)
        row = self.cases.delay(first, last, between, named, lemma["ns"], path)
        return None if row is None else (int(self.program.row(row).right), row)

    def _bus(self, first: int | None, last: int | None, lemma: dict[str, Any]) -> Proved:
        """Derive Theorem 2 of ``docs/proofs/bus.md``, with steps Theorem 1 of ``docs/proofs/path_and_bus.md``.

        Regions are priced as a whole in no derivation. They count as steps over delays, or the buses count alone.
        """
        p, name, tails = self.problem, f"bus_{self._lemmas}", Paths(self, last, forward=False)
        follows, shares = (
            self._follows(tails, lemma),
            {bus: count(share) for bus, share in lemma["multipliers"].items()},
        )
        weight_of = [shares.get(bus, 0) for bus in p.bus]
        traffic = self._traffic(name, follows, tails, shares, weight_of) if follows else Counter[int]()
        total = sum(shares.values()) * bool(follows)
        paths, devices = lemma.get("steps", []), [count(weight) for weight in lemma.get("devices", [])]
        ways: list[tuple[list[dict[str, Any]], list[int]]] = [(paths, devices)]
        if "regions" in lemma:
            ways = [([*paths, *lemma["regions"]], devices), ([], [])]
        proved = list[Proved]()
        for steps, busy in ways:
            weight = total + sum(busy) + sum(step["multiplier"] for step in steps if "first" not in step)
            if weight:
                terms = Counter(traffic)
                terms.update(self._steps(steps))
                terms.update({self.devices[d]: share for d, share in enumerate(busy)})
                terms = Counter(self.over_places(terms))
                proved.append(self._rounded(name, {row: Fraction(value) / weight for row, value in terms.items()}))
        return max(proved) if proved else self._path(first, last, lemma)

    def _steps(self, steps: list[dict[str, Any]]) -> Counter[int]:
        """Return the rows of weighted steps of paths; a region is a step over the delay between its ends."""
        terms, left = Counter[int](), Counter[int]()
        for step in steps:
            weight, to = count(step["multiplier"]), self.problem.o[step["last"]]
            origin = self.problem.o[step["first"]] if "first" in step else None
            left[to] += weight
            if origin is None:
                terms[self.first[to]] += weight
                continue
            left[origin] -= weight
            edge = "cost" not in step and (origin, to) in self.edges
            terms[self.edges[origin, to] if edge else self._delay(origin, to)] += weight
        if any(weight < 0 for weight in left.values()):
            raise Refused("more weight leaves an operator along steps than arrives there")
        terms.update({self.last[o]: weight for o, weight in left.items()})
        return terms

    def _delay(self, first: int, last: int) -> int:
        if (first, last) not in self.delays:
            self.delays[first, last] = self._path(first, last, {})
        return self.delays[first, last][1]

    def _follows(self, tails: Paths, lemma: dict[str, Any]) -> dict[int, int]:
        """Return how long the run goes on after the last byte of each operator that a lemma counts, in its order."""
        p, follows = self.problem, dict[int, int]()
        for o in tails.ns if self.on_bus else ():
            if p.host_inputs[o] and not any(p.shares[d] for d, _ in self.times[o]):
                behind = tails.ns[o] + min(ns - read for ns, read in self._after_bytes(o).values())
                if "operators" in lemma or behind >= lemma["least"]:
                    follows[o] = behind
        if "operators" in lemma:
            return {p.o[each]: follows[p.o[each]] for each in lemma["operators"] if p.o[each] in follows}
        return dict(sorted(follows.items(), key=lambda item: (-item[1], item[0])))

    def _after_bytes(self, o: int) -> dict[int, tuple[int, int]]:
        """Return the time of an operator, and the part of it that a direct read takes, by variable of its place."""
        of_read = {place: self.problem.host_read(o, place[0]) if place[1] == DIRECT else 0 for place in self.times[o]}
        return {y: (self.times[o][place], of_read[place]) for place, y in self.on[o].items()}

    def _traffic(
        self, name: str, follows: Collection[int], tails: Paths, shares: dict[str, int], weight_of: list[int]
    ) -> Counter[int]:
        """Add the transfers of operators; return a combination that says how long weighted buses carry them."""
        p, rule, add = self.problem, self.program.constraint, self.program.variable
        end, arrival = add(f"{name}_end"), {o: add(f"{name}_arrival_{o}") for o in follows}
        read = list(dict.fromkeys(t for o in follows for t in p.host_inputs[o]))
        loaded = {(t, d): add(f"{name}_loaded_{t}_{d}") for t in read for d in self.on_bus}
        for x in loaded.values():
            self.least[x] = rule(f"least_{x}", {x: 1})
        linked = {}
        for o in follows:
            minus = dict.fromkeys(self.waiting[o], -1)
            for t in p.host_inputs[o]:
                linked[o, t] = rule(f"{name}_needs_{o}_{t}", {loaded[t, d]: 1 for d in self.on_bus} | minus)
        busy = dict[str, int]()
        for bus in shares:
            on = [d for d in self.on_bus if p.bus[d] == bus]
            load = {loaded[t, d]: -p.routes[HOST, d].ns(p.size[t]) for t in read for d in on}
            direct = {
                y: -p.host_read(o, d)
                for o in follows
                for (d, mode), y in self.on[o].items()
                if mode == DIRECT and d in on
            }
            busy[bus] = rule(f"{name}_{len(busy)}", {end: 1} | load | direct)
        known = dict[int, tuple[dict[int, int], int, Proved | None]]()
        for o, at in arrival.items():
            after = {y: read - ns for y, (ns, read) in self._after_bytes(o).items()}
            terms = Counter({rule(f"{name}_runs_{o}", {self.ends[o]: 1, at: -1} | after): 1})
            tail = tails.proved(o)
            if tail is not None:
                terms[tail[1]] += 1
            row = self.program.combine(f"{name}_behind_{o}", self.over_places(terms))
            known[o] = {at: 1, end: -1}, 0, (int(self.program.row(row).right), row)
        behind = self._of_one(f"{name}_last", known)
        terms = Counter({busy[bus]: share for bus, share in shares.items()})
        terms[behind] += sum(shares.values())
        for t in read:
            reader = max((o for o in follows if (o, t) in linked), key=lambda o: p.taken(o, t))
            cost = {loaded[t, d]: weight_of[d] * p.routes[HOST, d].ns(p.size[t]) for d in self.on_bus}
            terms[linked[reader, t]] += min(cost.values())
            terms.update({self.least[x]: value - min(cost.values()) for x, value in cost.items()})
        return terms


_CASES: tuple[tuple[str, tuple[int, int]], ...] = (("yes", (GREATER, 1)), ("no", (LESS, 0)))


class Paths:
    """Least times from the end of ``base``, or from the run's start, to ends of operators; backwards, to its end."""

    def __init__(self, schedule: ScheduleProgram, base: int | None, *, forward: bool) -> None:
        self.schedule, self.base, self.forward = schedule, base, forward
        p = schedule.problem
        self.ns: dict[int, int] = {}
        self.over: dict[int, tuple[int | None, int | None]] = {}
        """The neighbour from which the longest path comes, and the row of the delay that leads from it, if one does."""
        self.rows: dict[int, int | None] = {}
        jumps = dict[int, list[tuple[int | None, Proved]]]()
        for (first, last), proved in schedule.delays.items():
            at, other = (last, first) if forward else (first, last)
            if at is not None:
                jumps.setdefault(at, []).append((other, proved))
        for o in p.order if forward else p.order[::-1]:
            near = [each for each in (p.before if forward else p.after)[o] if each in self.ns]
            if base is not None and o != base and not near:
                continue
            best = max(near, key=self._through, default=None)
            self.ns[o], self.over[o] = (0, (None, None)) if o == base else (self._step(o, best), (best, None))
            for other, (ns, row) in jumps.get(o, ()):
                reached = self.ns.get(other) if other is not None else (0 if base is None else None)
                if reached is not None and reached + ns > self.ns[o]:
                    self.ns[o], self.over[o] = reached + ns, (other, row)
        self.rows.update({} if base is None else {base: None})

    def _through(self, neighbour: int) -> int:
        """Return the length of the path over a neighbour, less what lies between it and the operator."""
        return self.ns[neighbour] + (0 if self.forward else min(self.schedule.times[neighbour].values()))

    def _step(self, o: int, neighbour: int | None) -> int:
        reached = 0 if neighbour is None else self._through(neighbour)
        if not self.forward:
            return reached
        return reached + self._least_time(o, reached)

    def _least_time(self, o: int, ready: int) -> int:
        """Return how long after ``ready`` an operator ends at the earliest."""
        times, arrival = self.schedule.times[o], self.schedule.arrivals[o]
        if arrival is None or self.base is not None:
            return min(times.values())
        wait, waits = max(0, arrival[0] - ready), self.schedule.waiting[o]
        return min(ns + (wait if self.schedule.on[o][place] in waits else 0) for place, ns in times.items())

    def start(self, o: int) -> Proved:
        """Return the least start of an operator after the base."""
        near = [each for each in self.schedule.problem.before[o] if each in self.ns]
        best = max(near, key=self._through, default=None)
        ns = 0 if best is None else self._through(best)
        return ns, self.schedule.program.combine(f"start_{o}", self._begins(o, best))

    def _begins(self, o: int, neighbour: int | None) -> Terms:
        """Return rows that together say when an operator can start after a neighbour has ended, or the run begun."""
        if neighbour is None:
            return {self.schedule.first[o]: 1}
        row = self.row(neighbour)
        return {self.schedule.edges[neighbour, o]: 1} | ({} if row is None else {row: 1})

    def proved(self, o: int) -> Proved | None:
        """Return the time and the row of an operator; None for the base itself."""
        row = self.row(o)
        return None if row is None else (self.ns[o], row)

    def row(self, o: int) -> int | None:
        """Return the row of an operator, derived with those of the path that leads to it; None for the base itself."""
        chain, at = list[int](), o
        while at not in self.rows:
            chain.append(at)
            following = self.over[at][0]
            if following is None:
                break
            at = following
        for each in reversed(chain):
            self.rows[each] = self._derived(each)
        return self.rows[o]

    def _derived(self, o: int) -> int:
        schedule, (neighbour, delay) = self.schedule, self.over[o]
        name = f"{'end' if self.forward else 'tail'}_{o}"
        before = None if neighbour is None else self.rows[neighbour]
        known: dict[int, Number] = {} if before is None else {before: 1}
        if delay is not None:
            return schedule.program.combine(name, {delay: 1} | known)
        if self.forward and self.base is None:
            ready = 0 if neighbour is None else self.ns[neighbour]
            return schedule.end(o, ready, self._begins(o, neighbour), name)[1]
        if self.forward:
            return schedule.program.combine(name, {**self._begins(o, neighbour), schedule.duration(o)[1]: 1})
        if neighbour is None:
            return schedule.program.combine(name, {schedule.last[o]: 1})
        return schedule.program.combine(
            name, {schedule.edges[o, neighbour]: 1, schedule.duration(neighbour)[1]: 1} | known
        )
