"""Constraints of a submodel's program: one function for each rule of ``docs/model.md``."""

from __future__ import annotations

from collections import defaultdict

from ortools.sat.python import cp_model

from .variables import Submodel, Variables


def each_operator_once(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> None:
    """An operator runs on one device in one mode."""
    modes = defaultdict(list)
    for (o, _, _), literal in v.runs.items():
        modes[o].append(literal)
    for literals in modes.values():
        model.add_exactly_one(literals)


def one_at_a_time(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> None:
    """A device runs one operator at a time, a channel carries one transfer at a time."""
    for intervals in (*v.on_device.values(), *v.on_channel.values()):
        if len(intervals) > 1:
            model.add_no_overlap(intervals)


def producers_before_consumers(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> None:
    """An operator starts after its predecessors of the submodel have ended, wherever they run."""
    index = submodel.problem.graph.index
    for o in submodel.operators:
        for p in index.predecessors[o]:
            if p in v.end:
                model.add(v.start[o] >= v.end[p])


def inputs_arrive(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> None:
    """An operator starts after each of its inputs has got to its device, in exactly one way."""
    problem, state = submodel.problem, submodel.state
    index = problem.graph.index
    ways = ways_by_target(v)
    for (o, d, direct), literal in v.runs.items():
        for t in index.inputs[o]:
            host, producer = index.producer[t] < 0, index.producer[t]
            if host and (direct or problem.reads_host_in_place(d)):
                continue
            if (t, d) in state.at:
                model.add(v.start[o] >= submodel.free(state.at[t, d])).only_enforce_if(literal)
                continue
            made_here = [v.here[producer, d]] if not host and (producer, d) in v.here else []
            model.add_bool_or([*made_here, *ways[t, d]]).only_enforce_if(literal)
            if (t, d) in v.load:
                model.add(v.start[o] >= v.load_end[t, d]).only_enforce_if([literal, v.load[t, d]])
            for copy in (way for way in ways[t, d] if (t, d) not in v.load or way is not v.load[t, d]):
                model.add(v.start[o] >= v.copy_end[t, d]).only_enforce_if([literal, copy])
    for (t, d), literals in ways.items():
        producer = index.producer[t]
        made_here = [v.here[producer, d]] if (producer, d) in v.here else []
        model.add_at_most_one([*made_here, *literals])
    for t, d in submodel.after.needed:
        if (t, d) not in state.at:
            model.add_bool_or([literal for literal, _ in arrivals(submodel, v, t, d)])


def ways_by_target(v: Variables) -> dict[tuple[int, int], list[cp_model.IntVar]]:
    """Literals of all ways in which each tensor can get to each device."""
    ways: dict[tuple[int, int], list[cp_model.IntVar]] = defaultdict(list)
    for (t, d), literal in v.load.items():
        ways[t, d].append(literal)
    for (t, _, d), literal in v.copy.items():
        ways[t, d].append(literal)
    return ways


def arrivals(submodel: Submodel, v: Variables, t: int, d: int) -> list[tuple[cp_model.IntVar, cp_model.IntVar]]:
    """Each way in which a tensor can get to a device, and when it is there then."""
    producer = submodel.problem.graph.index.producer[t]
    found = [(v.here[producer, d], v.end[producer])] if (producer, d) in v.here else []
    if (t, d) in v.load:
        found.append((v.load[t, d], v.load_end[t, d]))
    sources = range(len(submodel.problem.topology.devices))
    found += [(v.copy[t, s, d], v.copy_end[t, d]) for s in sources if (t, s, d) in v.copy]
    return found


def copies_leave_from_holders(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> None:
    """A copy starts where the tensor is and after it got there: made there, loaded there, or left there before."""
    index, state = submodel.problem.graph.index, submodel.state
    for (t, s, d), literal in v.copy.items():
        start, producer = v.copy_start[t, d], index.producer[t]
        if s in state.sources(t):
            model.add(start >= submodel.free(state.at.get((t, s), 0))).only_enforce_if(literal)
        elif producer < 0:
            model.add_implication(literal, v.load[t, s])
            model.add(start >= v.load_end[t, s]).only_enforce_if(literal)
        else:
            model.add_implication(literal, v.here[producer, s])
            model.add(start >= v.end[producer]).only_enforce_if(literal)


def memory_suffices(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> None:
    """What a device holds fits: all that it held, plus all that the submodel brings to it or makes on it.

    Like SortingHat's equation (11) this frees nothing within a submodel; devices on which all would fit are left out.
    """
    index = submodel.problem.graph.index
    for d, (room, parameter_room) in enumerate(submodel.state.room()):
        parameters = [(index.size[t], literal) for (t, device), literal in v.load.items() if device == d]
        copies = [(t, literal) for (t, _, device), literal in v.copy.items() if device == d]
        parameters += [(index.size[t], literal) for t, literal in copies if index.producer[t] < 0]
        brought = parameters + [(index.size[t], literal) for t, literal in copies if index.producer[t] >= 0]
        for o in submodel.operators:
            if (o, d) in v.here:
                brought.append((sum(index.size[t] for t in index.outputs[o]), v.here[o, d]))
        for entries, limit in ((brought, room), (parameters, parameter_room)):
            if sum(size for size, _ in entries) > limit:
                model.add(sum(size * literal for size, literal in entries) <= max(limit, 0))


ALL = (
    each_operator_once,
    one_at_a_time,
    producers_before_consumers,
    inputs_arrive,
    copies_leave_from_holders,
    memory_suffices,
)
"""The families of constraints that make a submodel's answer obey ``docs/model.md``."""
