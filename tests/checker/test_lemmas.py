"""Whatever lemmas are made up: what the checker proves of them holds in every schedule at hand."""

import json
from random import Random

from hypothesis import given, settings

from checker.cases import fan
from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_schedule
from tvm_sched_check.derivation import Derivation
from tvm_sched_check.document import Problem, Refused
from tvm_sched_check.replay import Replay
from tvm_sched_runtime.errors import TvmSchedError


def ends_of(checked, schedule):
    """When each operator ends, None being the start of the run (0) as ``first``, its end as ``last``."""
    document = json.loads(schedule.to_json())
    run = Replay(checked, document["placements"], document["transfers"])
    ends = {o: run.end[p] for p, (o, _, _) in enumerate(run.placements)}
    return ends, max(ends.values(), default=0)


def passed(ends, first, last):
    """Nanoseconds between two ends in a schedule."""
    of, whole = ends
    return (whole if last is None else of[last]) - (0 if first is None else of[first])


def made_up(random, checked, known):
    """A lemma of any rule, about any operators."""
    first, last = (random.choice([None, random.randrange(len(checked.operator_names))]) for _ in range(2))
    (_, end), (after, _) = known.reach(first, True), known.reach(last, False)
    between = [checked.operator_names[o] for o in checked.order if o in end and o in after and o != first]
    chosen = [name for name in between if random.random() < 0.7] or between
    rule = random.choice(["path", "bus", "work", "work", "turns", "placement"])
    buses = {checked.devices[d]["bus"]: random.randrange(5) for d in known.on_bus}
    weights = [random.choice([0, 1, 1, 2, 5]) for _ in checked.devices]
    lemma = {"rule": rule, "operators": [] if rule == "path" else chosen, "by": random.choice(["start", "end", "ramp"])}
    lemma |= {"multipliers": buses if rule == "bus" else weights, "least": random.randrange(2000)}
    return (None if rule == "bus" else first), last, lemma


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(max_operators=12, max_devices=4, min_operators=1, memory=("generous",)), seed=SEEDS)
def test_what_is_proved_holds_in_every_schedule(problem, seed):
    random, checked = Random(seed), Problem(json.loads(problem.to_json()))
    schedules = [random_schedule(problem, random.randrange(1 << 30)) for _ in range(6)]
    for method in ("heft", "single"):
        try:
            schedules.append(solve(problem, method=method))
        except TvmSchedError:
            continue  # this method finds none
    times = [ends_of(checked, schedule) for schedule in schedules]
    known = Derivation(checked)
    for _ in range(25):
        first, last, lemma = made_up(random, checked, known)
        least = min(passed(ends, first, last) for ends in times)
        lemma["ns"] = max(least, 0) + 1  # a placement lemma is proved for what it claims; this would be wrong
        try:
            proved = known.proved(lemma["rule"], first, last, lemma)
        except Refused:
            continue
        assert proved <= least, (lemma, first, last)
        known.to[last].append((first, proved))
        known.of[first].append((last, proved))


def test_thousands_of_readers_of_one_tensor_are_few_steps():
    """Lemma 3 of heads_and_tails.md: each of 1,000 readers takes 1 ns, and a copy of what it reads longer than all."""
    count = 1000
    document = json.loads(fan(2000).to_json())
    source, reader = document["graph"]["operators"][:2]
    readers = [reader | {"name": f"r{i}", "outputs": []} for i in range(count)]
    document["graph"] |= {"operators": [source, *readers], "tensors": document["graph"]["tensors"][:1], "outputs": []}
    document["costs"] |= {
        mode: [row] * (count + 1) for mode, row in (("operator_ns", [1, 1]), ("direct_ns", [None] * 2))
    }
    known = Derivation(Problem(document))
    steps = 0

    class Counted(list):
        def __getitem__(self, position):
            nonlocal steps
            steps += 1
            return super().__getitem__(position)

    known.least_busy = Counted(known.least_busy)
    assert known.reach(None, forward=False)[0][0] == count
    assert steps < 20 * count
