"""Solve a mixed-integer program with OR-Tools MathOpt: limits, seed, start solution and Ctrl-C, the same for all solvers."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from tvm_sched_runtime.checks import require_at_least, require_seed
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.search_budget import OutOfTime, SearchLimits, TimedOptions, check_time, seconds_left

from .solver_runs import solve_in_thread, stdout_aside

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

SOLVERS = {"highs": "HIGHS", "scip": "GSCIP", "gurobi": "GUROBI"}
"""Names of solvers, here and in MathOpt; Gurobi needs its library and a licence."""

GAP = 1e-4
"""Relative gap at which an answer counts as optimal."""


ENOUGH = 0.5
"""Least fraction of a solver's seconds for which an unproved answer to an equal program is reused."""


class Effort(NamedTuple):
    """Solver and limits for a program."""

    solver: str
    """One of `SOLVERS`."""
    time_limit: float
    """Seconds by the clock; if it ends the search, the answer may differ from run to run."""
    node_limit: int
    """Nodes of the search tree: a limit that does not depend on the machine. 0: no limit."""
    seed: int


class Answer(NamedTuple):
    """Result of a solver."""

    values: Mapping[Any, float] | None
    """Best solution; None if the limits ended the search before the first one."""
    objective: float | None
    """Objective of that solution."""
    bound: float | None
    """No solution of the program has a lower objective; None if unknown."""
    status: str
    """``optimal``, ``limit`` (a solution that is not proved), ``no solution``, or another status of the solver."""
    seconds: float

    @property
    def optimal(self) -> bool:
        """Whether no solution is better."""
        return self.status == "optimal"


OptionsT = TypeVar("OptionsT", bound="ProgramOptions")


class ProgramOptions(TimedOptions, frozen=True, forbid_unknown_fields=True):
    """Options of schedulers that solve a mixed-integer program for each submodel.

    Parameters
    ----------
    q : int
        Subgraphs of a device in a submodel.
    dominators : int
        Dominators in a submodel.
    operators : int
        Largest number of operators in a submodel; larger regions between dominators are cut into pieces of their order.
    time_limit : float
        Seconds of the solver for one submodel, by the clock.
    total_time_limit : float
        Seconds in all, by the clock; the heuristic alone schedules the submodels that remain then.
    seed : int
    weights : str
        For several models, separated by commas: models of greater weight end earlier. With ``2,1`` the first model's
        submodels follow each other twice as fast as the second model's. Default: all models end at about the same time.
    node_limit : int
        Nodes of the solver's search tree for one submodel, 0 for no limit. If it ends the search before the time limit,
        the same seed gives the same schedule on any machine.
    solver : str
        ``highs``, ``scip`` or ``gurobi``.
    """

    q: int = 6
    dominators: int = 1
    operators: int = 48
    time_limit: float = 30.0
    total_time_limit: float = 3600.0
    seed: int = 0
    weights: str = ""
    node_limit: int = 0
    solver: str = "highs"

    def __post_init__(self) -> None:
        require_at_least(self, q=1, dominators=1, operators=1, time_limit=0, total_time_limit=0, node_limit=0)
        require_seed(self.seed)
        _ = self.model_weights
        _check_solver(self.solver)

    @property
    def model_weights(self) -> list[float]:
        """The weights as numbers."""
        try:
            return [float(weight) for weight in self.weights.split(",")] if self.weights else []
        except ValueError:
            raise InputError(f"weights are {self.weights!r}; numbers separated by commas are allowed") from None

    def within(self: OptionsT, limits: SearchLimits) -> OptionsT:
        """Return the options with this time in all; work is not counted here."""
        if limits.work is not None:
            raise InputError(f"work is {limits.work}; methods that solve programs take a time_limit, and no work")
        return self if limits.time_limit is None else msgspec.structs.replace(self, total_time_limit=limits.time_limit)

    def part(self: OptionsT, count: int) -> OptionsT:
        """Return the options of one of several searches that share the time."""
        return msgspec.structs.replace(self, total_time_limit=self.total_time_limit / count)

    @property
    def seconds(self) -> float:
        """Time limit of the method with its certificate, in seconds."""
        return self.total_time_limit

    def effort(self, seconds: float) -> Effort:
        """Return the solver and limits for a solver that has this many seconds."""
        return Effort(self.solver, min(self.time_limit, seconds), self.node_limit, self.seed)


def _check_solver(name: str) -> None:
    """Raise `InputError` if the solver is unknown."""
    if name not in SOLVERS:
        raise InputError(f"solver is {name!r}; {', '.join(SOLVERS)} are allowed")


def limited_model() -> mathopt.Model:
    """Return an empty program that can be built until the deadline of the search around; then it raises `OutOfTime`.

    Python adds some ten thousand variables and constraints a second, so a program may take longer to build than to solve.
    """
    from ortools.math_opt.python import mathopt

    class Limited(mathopt.Model):
        def add_variable(self, *of: Any, **named: Any) -> mathopt.Variable:
            check_time()
            return super().add_variable(*of, **named)

        def add_linear_constraint(self, *of: Any, **named: Any) -> mathopt.LinearConstraint:
            check_time()
            return super().add_linear_constraint(*of, **named)

    return Limited()


def solver_type(name: str) -> mathopt.SolverType:
    """Return MathOpt's value for one of `SOLVERS`; raises `InputError` for other names."""
    from ortools.math_opt.python import mathopt

    _check_solver(name)
    return getattr(mathopt.SolverType, SOLVERS[name])


def contiguous(
    program: mathopt.Model,
    nodes: Sequence[int],
    edges: Sequence[tuple[int, int]],
    subgraphs: Iterable[int],
    within: Mapping[tuple[int, int], mathopt.Variable],
    leads: Mapping[tuple[int, int], mathopt.Variable],
) -> None:
    """Add constraints that no path leaves a subgraph and returns.

    Parameters
    ----------
    within : mapping of (node, subgraph)
        1 if the node is in the subgraph.
    leads : mapping of (node, subgraph)
        At least 1 if the node is in the subgraph or a path leads from it into the subgraph.

    Notes
    -----
    After Tarnawski et al. (NeurIPS 2020); equations (6) to (8) of SortingHat.
    """
    for j in subgraphs:
        for node in nodes:
            program.add_linear_constraint(leads[node, j] >= within[node, j])
        for a, b in edges:
            program.add_linear_constraint(leads[a, j] >= leads[b, j])
            program.add_linear_constraint(leads[b, j] <= within[b, j] - within[a, j] + 1)


def minimise(program: mathopt.Model, effort: Effort, start: Mapping[Any, float]) -> Answer | None:
    """Solve a program within limits; return its best solution, bound and status, or None if the solver failed.

    Parameters
    ----------
    program : mathopt.Model
        The program with its objective, which is minimised.
    start : mapping of variable to float
        A known solution as a hint for the solver; it may leave variables out.

    Raises
    ------
    InputError
        The solver is not available.
    OutOfTime
        The deadline of the search around has passed, and the solver has not ended by `OVERTIME` later.
    KeyboardInterrupt
        At once, not when the solver is done.
    """
    from ortools.math_opt.python import mathopt

    check_time()
    seconds = min(effort.time_limit, seconds_left())
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=seconds),
        node_limit=effort.node_limit or None,
        random_seed=effort.seed,
        relative_gap_tolerance=GAP,
    )
    hints = mathopt.ModelSolveParameters(solution_hints=[mathopt.SolutionHint(variable_values=dict(start))])
    begin = time.monotonic()
    result = _solved(program, parameters, hints, effort.solver)
    if result is None:
        return None
    reason, bound = result.termination.reason, result.termination.objective_bounds.dual_bound
    known = {"FEASIBLE": "limit", "NO_SOLUTION_FOUND": "no solution"}
    status = known.get(reason.name, reason.name.lower().replace("_", " "))
    solved = result.has_primal_feasible_solution()
    return Answer(
        result.variable_values() if solved else None,
        result.objective_value() if solved else None,
        bound if math.isfinite(bound) else None,
        status,
        time.monotonic() - begin,
    )


def argmax(values: Sequence[float]) -> int:
    """Return the position of the largest value: of the 1 among binary variables, within a solver's tolerances."""
    return max(range(len(values)), key=values.__getitem__)


def _solved(
    program: mathopt.Model, parameters: mathopt.SolveParameters, hints: mathopt.ModelSolveParameters, name: str
) -> mathopt.SolveResult | None:
    """Return a solver's result; None after an internal error of the solver, which HiGHS has occasionally."""
    from ortools.math_opt.python import mathopt
    from ortools.util.python.solve_interrupter import SolveInterrupter

    solver, interrupter = solver_type(name), SolveInterrupter()

    def solve() -> mathopt.SolveResult:
        with stdout_aside():
            return mathopt.solve(program, solver, params=parameters, model_params=hints, interrupter=interrupter)

    try:
        return solve_in_thread(solve, interrupter.interrupt)
    except OutOfTime:
        raise
    except Exception as error:
        # MathOpt's own translation of a solver's refusal can fail; the solver's error is the context then.
        reason = error.__context__ or error
        if "[INTERNAL]" in str(reason):
            return None
        raise InputError(f"solver {name!r} cannot be used here ({reason}); use one of {', '.join(SOLVERS)}") from None
