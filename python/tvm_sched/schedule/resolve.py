"""Problems with variants: the problem and the schedule that a choice among them makes, both without variants."""

from __future__ import annotations

from ..errors import ProblemError, ScheduleError
from ..problem import Problem
from .schedule import Schedule


def resolved(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """What a schedule is about: the problem in which each group is computed as it chooses, and the schedule of that.

    Where the problem has no variants they are the two that were given. The schedule keeps its certificate, whose bound holds
    over all variants.

    Raises
    ------
    ScheduleError
        It chooses a group or a way that the problem does not have.
    """
    if problem.variants is None and not schedule.choice:
        return problem, schedule
    try:
        chosen = problem.resolve(schedule.choice)
    except ProblemError as error:
        raise ScheduleError(str(error)) from None
    digest = chosen.digest if schedule.problem == problem.digest else schedule.problem
    return chosen, schedule.replace(problem=digest, choice={})


def with_choice(problem: Problem, schedule: Schedule, choice: dict[str, str]) -> Schedule:
    """A schedule of what ``choice`` makes of a problem, as one of the problem itself; the inverse of `resolved`."""
    assert problem.variants is not None
    first = {group.name: group.graph_way for group in problem.variants.groups}
    named = {group: way for group, way in choice.items() if way != first[group]}
    return schedule.replace(problem=problem.digest, choice=named)
