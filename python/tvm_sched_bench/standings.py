"""Tables of results: distances from the best known solutions and from the bounds, wins, and errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, isinf, log
from statistics import median

from .best_known import BestKnown
from .kinds import KINDS
from .run_files import Circumstances, Result
from .suite import Case, Suite

HEADER = ("method", "instances", "failed", "over best", "median gap", "largest gap", "wins", "ties", "s a run")
"""Head of the table of methods, see `cells`."""
DEFAULT = "anytime"
"""The default method of each kind that has one of this name."""
_LONGEST = 240
"""Largest number of characters of an error on a page."""
_EQUAL = 1e-9
"""Relative difference below which two costs in floating point are the same."""


@dataclass(frozen=True)
class Summary:
    """Results of a method on its instances of a kind."""

    kind: str
    method: str
    instances: int
    failed: int
    """Numbers of instances, and of those with a run that found nothing."""
    over_best: float | None
    """Geometric mean of value over best known value, at least 1; runs with several seeds count with their mean."""
    over_bound: float | None
    """Median of the gap to the bound, as a fraction of the value, or of the bound for kinds that maximise."""
    most_over_bound: float | None
    """Largest gap."""
    wins: int
    ties: int
    """Instances on which no other method is as good, and on which others are as good and none is better."""
    seconds: float
    """Mean time of a run."""


class Standings:
    """All results on a suite's current instances, with the best known solutions.

    Examples
    --------
    >>> from tvm_sched_bench import Standings
    >>> standings = Standings(suite, [result], best)
    >>> standings.value(case.name, "heft"), standings.bound(case.name), standings.leaders(case.name)
    (3750.0, (3000.0, 'device work'), ['heft'])
    """

    def __init__(self, suite: Suite, results: Iterable[Result], best: BestKnown) -> None:
        self.cases: dict[str, Case] = {}
        self.runs: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
        self.left_out: set[str] = set()
        self.known = dict(best.instances)
        for result in results:
            case = self.cases.get(result.instance) or suite.case(result.instance)
            if case is None or case.digest != result.digest:
                self.left_out.add(result.instance)
                continue
            self.cases[case.name] = case
            self.runs[case.name][result.method].append(result)

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds with results."""
        return [name for name in KINDS.entries if any(case.kind.name == name for case in self.cases.values())]

    def of(self, kind: str) -> list[str]:
        """Return the instances of a kind."""
        return [name for name, case in self.cases.items() if case.kind.name == kind]

    def methods(self, instances: Iterable[str]) -> list[str]:
        """Return the methods with runs on any of the instances; the default comes first."""
        methods = {method for name in instances for method in self.runs[name]}
        return sorted(methods, key=lambda method: (method != DEFAULT, method))

    def value(self, instance: str, method: str) -> float | None:
        """Return the mean over the runs; None if there is no run, or one found nothing."""
        values = [result.value for result in self.runs[instance].get(method, [])]
        whole = [value for value in values if value is not None]
        return sum(whole) / len(whole) if values and len(whole) == len(values) else None

    def best(self, instance: str) -> tuple[float | None, str]:
        """Return the best value of these runs and the kept solutions, and its method."""
        kind, case = self.cases[instance].kind, self.cases[instance]
        known = self.known.get(instance)
        best = (known.value, known.method) if known is not None and known.digest == case.digest else (None, "")
        for method, results in self.runs[instance].items():
            for result in results:
                if result.value is not None and kind.better(result.value, best[0]):
                    best = result.value, method
        return best

    def bound(self, instance: str) -> tuple[float, str]:
        """Return the strongest bound of these runs and the kept ones, and its name."""
        kind, case, known = self.cases[instance].kind, self.cases[instance], self.known.get(instance)
        bounds = [(result.bound, result.bound_by) for results in self.runs[instance].values() for result in results]
        if known is not None and known.digest == case.digest:
            bounds.append((known.bound, known.bound_by))
        return (min if kind.most else max)(bounds)

    def leaders(self, instance: str) -> list[str]:
        """Return the methods with the best mean of these runs."""
        kind = self.cases[instance].kind
        values = {m: v for m in self.runs[instance] if (v := self.value(instance, m)) is not None}
        best = (max if kind.most else min)(values.values(), default=0.0)
        return [method for method, value in values.items() if abs(value - best) <= _EQUAL * abs(best)]

    def gap(self, instance: str, value: float) -> float:
        """Return the gap between a value and the bound."""
        bound, most = self.bound(instance)[0], self.cases[instance].kind.most
        low, high = (value, bound) if most else (bound, value)
        return 1 - low / high if high else 0.0


def summaries(standings: Standings) -> list[Summary]:
    """Summarise each method and kind.

    Examples
    --------
    >>> from tvm_sched_bench import Standings, summaries
    >>> [(summary.kind, summary.method) for summary in summaries(Standings(suite, [result], best))]
    [('latency', 'heft')]
    """
    return [each for kind in standings.kinds for each in _of(standings, kind)]


def _summary(standings: Standings, kind: str, method: str) -> Summary:
    instances = [name for name in standings.of(kind) if method in standings.runs[name]]
    runs = [result for name in instances for result in standings.runs[name][method]]
    values = {name: value for name in instances if (value := standings.value(name, method)) is not None}
    gaps = [standings.gap(name, value) for name, value in values.items()]
    leaders = [standings.leaders(name) for name in instances]
    return Summary(
        kind,
        method,
        len(instances),
        len(instances) - len(values),
        _over_best(standings, values),
        median(gaps) if gaps else None,
        max(gaps, default=None),
        sum(each == [method] for each in leaders),
        sum(method in each and len(each) > 1 for each in leaders),
        sum(result.seconds for result in runs) / len(runs),
    )


def _over_best(standings: Standings, values: Mapping[str, float]) -> float | None:
    ratios = [
        standings.cases[name].kind.ratio(value, best)
        for name, value in values.items()
        if (best := standings.best(name)[0]) is not None
    ]
    if not ratios or any(isinf(ratio) or ratio <= 0 for ratio in ratios):
        return float("inf") if ratios else None
    return exp(sum(map(log, ratios)) / len(ratios))


def page(standings: Standings, circumstances: Sequence[Circumstances], command: str, note: str = "") -> str:
    """Return all tables as a page of Markdown, with a note on the circumstances above them.

    Examples
    --------
    >>> from tvm_sched_bench import Standings, page
    >>> page(Standings(suite, [result], best), [], "tvm-sched bench run").splitlines()[0]
    '# The benchmark: methods against the best known'
    """
    lines = ["# The benchmark: methods against the best known", ""]
    lines += (
        [f"Made by `{command}`.", ""]
        + [f"- {each.words}" for each in circumstances]
        + [f"- {note}"] * bool(note)
        + ["", _HOW_TO_READ]
    )
    for kind in standings.kinds:
        lines += ["", f"## {kind.capitalize()}", "", *_markdown(HEADER, map(cells, _of(standings, kind)))]
        lines += ["", "By family, over the best known:", "", *_families(standings, kind)]
        lines += ["", *_behind(standings, kind)]
        if spread := _spread(standings, kind):
            header = ("family", "method", "instances", "runs", "least", "median", "most", "failed")
            lines += ["", "Over the seeds of random methods, over the best known:", "", *_markdown(header, spread)]
    lines += ["", "## Best known", "", "Each solution, bound and method is in `best.json` beside the suite."]
    lines += ["", *_best_known(standings)]
    lines += ["", "## Errors", "", *_errors(standings)]
    return "\n".join(lines) + "\n"


_HOW_TO_READ = """\
`over best` is the geometric mean of what a method's solutions are worth over the best known ones (1 is as good; of random
methods each run counts); `gap` is what the bound leaves open, `wins` the instances on which no other method here is as good,
`ties` those on which others are, `failed` those without a solution. Solutions are priced by the package; those
kept as best known and counted as checked in the last table were checked by `tvm_sched_check` too. How to take part:
[the benchmark](../tasks/benchmark.md)."""


def _of(standings: Standings, kind: str) -> list[Summary]:
    return [_summary(standings, kind, method) for method in standings.methods(standings.of(kind))]


def cells(summary: Summary) -> tuple[str, ...]:
    """Return a line of the table of methods."""
    return (
        summary.method,
        str(summary.instances),
        str(summary.failed),
        _number(summary.over_best),
        _percent(summary.over_bound),
        _percent(summary.most_over_bound),
        str(summary.wins),
        str(summary.ties),
        f"{summary.seconds:.2g}",
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _families(standings: Standings, kind: str) -> list[str]:
    """Return the table of values over the best known, by family and method."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in standings.of(kind):
        families[name.partition("/")[0]].append(name)
    methods = standings.methods(standings.of(kind))
    rows = []
    for family, names in families.items():
        each = (
            _over_best(standings, {n: v for n in names if (v := standings.value(n, method)) is not None})
            for method in methods
        )
        rows.append([f"{family} ({len(names)})", *map(_number, each)])
    return _markdown(["family", *methods], rows)


def _spread(standings: Standings, kind: str) -> list[Sequence[str]]:
    """Return least, median of the instances' medians, and largest over the best, of methods with several seeds."""
    ratios_of: dict[tuple[str, str], list[tuple[int, list[float]]]] = defaultdict(list)
    for name in standings.of(kind):
        best, ratio = standings.best(name)[0], standings.cases[name].kind.ratio
        for method, results in sorted(standings.runs[name].items()):
            if len({result.seed for result in results}) > 1 and best is not None:
                ratios = [ratio(result.value, best) for result in results if result.value is not None]
                ratios_of[name.partition("/")[0], method].append((len(results), ratios))
    rows: list[Sequence[str]] = []
    for (family, method), instances in ratios_of.items():
        known = [ratios for _, ratios in instances if ratios]
        middle = median(map(median, known)) if known else None
        ends = (pick(map(pick, known)) if known else None for pick in (min, max))
        least, most = map(_number, ends)
        runs, failed = sum(n for n, _ in instances), sum(n - len(ratios) for n, ratios in instances)
        rows.append((family, method, str(len(instances)), str(runs), least, _number(middle), most, str(failed)))
    return rows


def _behind(standings: Standings, kind: str) -> Iterator[str]:
    """Yield the instances on which the default method is not the best, and its distance from the best."""
    rows = []
    for name in standings.of(kind):
        value, leaders = standings.value(name, DEFAULT), standings.leaders(name)
        if DEFAULT not in standings.runs[name] or DEFAULT in leaders or not leaders:
            continue
        best = standings.value(name, leaders[0])
        assert best is not None
        worse = "no solution" if value is None else _by(standings.cases[name].kind.ratio(value, best))
        rows.append(f"- {name}: {worse} than {', '.join(leaders)}")
    if any(DEFAULT in standings.runs[name] for name in standings.of(kind)):
        yield f"`{DEFAULT}` is not the best method on {len(rows)} of {len(standings.of(kind))} instances" + (
            ":" if rows else "."
        )
        if rows:
            yield ""
    yield from rows


def _by(ratio: float) -> str:
    return f"{ratio - 1:.2%} worse" if ratio >= 1.0001 else "less than 0.01% worse"


def _best_known(standings: Standings) -> list[str]:
    """Return the numbers of kept and of checked best known solutions of each family, and their gaps."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in standings.cases:
        if standings.best(name)[0] is not None:
            families[name.partition("/")[0]].append(name)
    rows = []
    for family, names in families.items():
        gaps = [standings.gap(name, value) for name in names if (value := standings.best(name)[0]) is not None]
        kept = [known for name in names if (known := standings.known.get(name)) is not None]
        checked = sum(bool(known.checked) for known in kept)
        rows.append(
            (family, str(len(names)), str(len(kept)), str(checked), _percent(median(gaps)), _percent(max(gaps)))
        )
    return _markdown(("family", "instances", "kept", "checked", "median gap", "largest gap"), rows)


def _errors(standings: Standings) -> Iterator[str]:
    """Yield the first error of each method and family."""
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, runs in standings.runs.items():
        for method, results in runs.items():
            for result in results:
                if result.value is None:
                    seen[method, name.partition("/")[0]].append(result.error)
    for (method, family), errors in seen.items():
        first = errors[0] if len(errors[0]) <= _LONGEST else f"{errors[0][:_LONGEST]} ..."
        yield f"- {method} on {family}, {len(errors)} time{'s' * (len(errors) > 1)}: {first}"
    if standings.left_out:
        yield f"- Instances that have changed since, or are no longer there: {', '.join(sorted(standings.left_out))}"
    if not seen and not standings.left_out:
        yield "None."
