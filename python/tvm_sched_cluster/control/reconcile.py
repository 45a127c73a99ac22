"""`Controller`: changes the running services of a cluster step by step until they are the wanted ones.

A step reads the store, plans actions and carries them out. Each action is first written to the store as a phase of a
placement (``starting``, ``leaving``), then given to the driver, then written as done. A controller that is killed between
any two of these repeats the driver's part, which changes nothing the second time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from tvm_sched_runtime.checks import require_not_negative, require_positive
from tvm_sched_runtime.errors import InputError, ServingError

from ..admission import Admission, AdmissionRules
from ..allocators.allocator_registry import get, try_place
from ..controller import defragment
from ..problem.service import ServiceRequest
from ..problem.service_placement import ServicePlacement
from ..search.cluster_state import ClusterState
from .drivers import Driver, PlanDriver
from .store import Placed, Store, Wanted

HOUR = 3600.0
_MISSES = 2
"""Steps in a row in which a deployment does not serve, after which it is started again."""


class ControllerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a controller works.

    Parameters
    ----------
    allocator : str
    moves_per_hour : int
        Most moves to empty drained parts and to make room.
    defragment : bool
        Whether services move to make room for others.
    preempt : bool
        Whether a service may end others of lower priority, which then wait.
    admission : AdmissionRules
        Its ``slack`` has no effect here.
    lease_seconds : float
        After this time without a step, another controller may take over.
    """

    allocator: str = "anytime"
    moves_per_hour: int = 20
    defragment: bool = False
    preempt: bool = False
    admission: AdmissionRules = AdmissionRules()
    lease_seconds: float = 30.0

    def __post_init__(self) -> None:
        get(self.allocator)
        require_not_negative("moves an hour", self.moves_per_hour)
        require_positive("seconds of the lease", self.lease_seconds)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Next action of the controller, with its reason.

    Attributes
    ----------
    what : {"expire", "end", "lose", "preempt", "start", "move", "wait"}
    name : str
        The service.
    placement : ServicePlacement or None
        Where it goes.
    generation : int
        The placement that ends; 0: all of the service.
    reason : str
    """

    what: Literal["expire", "end", "lose", "preempt", "start", "move", "wait"]
    name: str
    placement: ServicePlacement | None = None
    generation: int = 0
    reason: str = ""

    @property
    def line(self) -> str:
        """The action, its place and its reason as one line."""
        where = f" on {', '.join(self.placement.gpus)}" if self.placement else ""
        return f"{self.what} {self.name}{where}" + (f": {self.reason}" if self.reason else "")


def new_holder() -> str:
    """Return a name of this process for the lease."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Controller:
    """The reconcile loop.

    Parameters
    ----------
    store : Store
        ``who`` is the holder of the lease.
    empty : callable
        Returns an empty state of the cluster.
    driver : Driver, optional
        Default: nothing is deployed.
    options : ControllerOptions, optional
    """

    def __init__(
        self,
        store: Store,
        empty: Callable[[], ClusterState],
        driver: Driver | None = None,
        options: ControllerOptions | None = None,
    ) -> None:
        self.store, self.empty = store, empty
        self.driver, self.options = driver or PlanDriver(), options or ControllerOptions()
        self._missed: dict[str, int] = {}

    def step(self) -> list[Action]:
        """Take or renew the lease, carry out what is planned, and return it.

        Raises
        ------
        InputError
            Another controller holds the lease.
        """
        self.store.lease(self.options.lease_seconds)
        self._converge()
        done = []
        for action in self.plan():
            self.store.lease(self.options.lease_seconds)
            if self._carry_out(action):
                done.append(action)
                self._converge()
        self._revive()
        return done

    def plan(self) -> list[Action]:
        """Return what a step would do, in order, and change nothing."""
        return _Plan(self).actions

    def state(self, placed: list[Placed] | None = None) -> ClusterState:
        """Return the cluster with all placements, those on failed parts left out, and drained parts closed."""
        state, parts = self.empty(), self.store.parts()
        for part, condition in parts.items():
            if condition == "failed":
                state.fail(part)
        for each in self.store.placed() if placed is None else placed:
            if not self._touches_failed(state, each.placement):
                state.hold(msgspec.structs.replace(each.placement, request=each.deployment))
        for part, condition in parts.items():
            if condition == "drained":
                state.cordon(part)
        return state

    @staticmethod
    def _touches_failed(state: ClusterState, placement: ServicePlacement) -> bool:
        links = {state.cluster.links[state.cluster.link_id[hop.link]].name for hop in placement.hops}
        return bool(state.failed_parts & {*placement.gpus, *links})

    def moves_left(self) -> int:
        """Return how many services may still move in this hour."""
        since = self.store.clock() - HOUR
        return max(0, self.options.moves_per_hour - len(self.store.events(10**9, since, "move")))

    def _carry_out(self, action: Action) -> bool:
        """Write an action to the store, unless it is no longer wanted."""
        with self.store.transaction(self.store.who) as db:
            row = db.execute("select generation, expires from wanted where name = ?", (action.name,)).fetchone()
            if action.what == "wait":
                changed = db.execute(
                    "update wanted set reason = ? where name = ? and reason != ?",
                    (action.reason, action.name, action.reason),
                ).rowcount
                if not changed:
                    return False
            elif action.what == "expire":
                if row is None or row[1] is None or row[1] > self.store.clock():
                    return False  # renewed meanwhile
                db.execute("delete from wanted where name = ?", (action.name,))
                db.execute("update placed set phase = 'leaving' where name = ?", (action.name,))
            elif action.what in ("end", "lose", "preempt"):
                if action.what == "end" and row is not None:
                    return False  # submitted again meanwhile: the next plan looks anew
                which = "name = ? and (? = 0 or generation = ?)"
                key = action.name, action.generation, action.generation
                db.execute(f"update placed set phase = 'leaving' where {which}", key)
            else:
                if row is None or action.placement is None:
                    return False  # withdrawn meanwhile
                generation = row[0] + 1
                text = msgspec.json.encode(msgspec.structs.replace(action.placement, request=action.name)).decode()
                db.execute("insert into placed values (?, ?, ?, 'starting')", (action.name, generation, text))
                db.execute("update wanted set generation = ?, reason = '' where name = ?", (generation, action.name))
            gpus = f" on {', '.join(action.placement.gpus)}" if action.placement else ""
            self.store.log(action.what, action.name, action.reason + gpus)
        return True

    def _converge(self) -> None:
        """Start what begins, then end what leaves; a failed start is undone."""
        begin = [each for each in self.store.placed() if each.phase == "starting"]
        failed = self.state([]) if begin else None
        for each in begin:
            if failed is not None:
                error = ""
                try:
                    if self._touches_failed(failed, each.placement):
                        raise ServingError("a part of its place has failed")
                    self.driver.start(each.deployment, msgspec.structs.replace(each.placement, request=each.deployment))
                except (InputError, ServingError) as caught:
                    error = str(caught)
                with self.store.transaction(self.store.who) as db:
                    key = (each.name, each.generation)
                    if error:
                        db.execute("update placed set phase = 'leaving' where name = ? and generation = ?", key)
                        db.execute("update wanted set reason = ? where name = ?", (error, each.name))
                        self.store.log("failed to start", each.name, error)
                    else:
                        db.execute("update placed set phase = 'leaving' where name = ? and generation < ?", key)
                        db.execute("update placed set phase = 'serving' where name = ? and generation = ?", key)
                        self.store.log("serves", each.name, each.deployment)
        for each in self.store.placed():
            if each.phase == "leaving":
                self.driver.end(each.deployment)
                with self.store.transaction(self.store.who) as db:
                    db.execute("delete from placed where name = ? and generation = ?", (each.name, each.generation))
                    self.store.log("ended", each.name, each.deployment)

    def _revive(self) -> None:
        """Let deployments start again that have not served for some steps."""
        living = self.driver.living()
        if living is None:
            return
        for each in self.store.placed():
            missed = 0 if each.deployment in living else self._missed.get(each.deployment, 0) + 1
            self._missed[each.deployment] = missed
            if each.phase == "serving" and missed >= _MISSES:
                with self.store.transaction(self.store.who) as db:
                    key = (each.name, each.generation)
                    db.execute("update placed set phase = 'starting' where name = ? and generation = ?", key)
                    self.store.log("died", each.name, each.deployment)
                self._missed[each.deployment] = 0


class _Plan:
    """The actions of a step, planned on a copy of the state."""

    def __init__(self, controller: Controller) -> None:
        self.controller, self.options = controller, controller.options
        store = controller.store
        self.placed, self.wanted = store.placed(), store.wanted()
        self.state = controller.state(self.placed)
        self.actions: list[Action] = []
        self.moves = controller.moves_left()
        self.now = store.clock()
        alive = [each for each in self.placed if each.phase != "leaving"]
        self.running = {each.name: each for each in sorted(alive, key=lambda e: e.deployment in self.state.running)}
        self._end()
        waiting = [each for each in self.wanted if each.name not in self.running]
        for each in waiting:
            self._place(each)
        self._drain(store.parts())
        if self.options.defragment and not waiting:
            self._defragment()

    def _release(self, name: str) -> None:
        self.running.pop(name, None)
        for each in self.placed:
            if each.name == name and each.deployment in self.state.running:
                self.state.release(each.deployment)

    def _end(self) -> None:
        for each in self.wanted:
            if each.expires is not None and each.expires <= self.now:
                self.actions.append(Action(what="expire", name=each.name, reason="its lifetime is over"))
                self._release(each.name)
        self.wanted = [each for each in self.wanted if each.expires is None or each.expires > self.now]
        wanted = {each.name: each.service for each in self.wanted}
        for name in list(self.running):
            if name not in wanted:
                self.actions.append(Action(what="end", name=name, reason="no longer wanted"))
                self._release(name)
        for placed in self.placed:
            if placed.phase == "leaving" or placed.name not in self.running:
                continue
            reason = ""
            if placed.deployment not in self.state.running:
                reason = "a part that it ran on has failed"
            elif placed.placement.service != wanted[placed.name]:
                reason = "another service is wanted under its name"
                self.state.release(placed.deployment)
            if reason:
                self.actions.append(Action(what="lose", name=placed.name, generation=placed.generation, reason=reason))
                if self.running[placed.name] is placed:
                    del self.running[placed.name]

    def _place(self, wanted: Wanted) -> None:
        state, service = self.state, self.state.services.get(wanted.service)
        if service is None:
            self.actions.append(Action(what="wait", name=wanted.name, reason=f"there is no service {wanted.service!r}"))
            return
        refusal = Admission(self.options.admission).refusal(state, service)
        if refusal:
            self.actions.append(Action(what="wait", name=wanted.name, reason=refusal))
            return
        placement, ended = self._try(wanted), list[Wanted]()
        if placement is None and self.options.preempt:
            placement, ended = self._preempt(wanted)
        if placement is None:
            self.actions.append(Action(what="wait", name=wanted.name, reason="no place is free"))
            return
        self.actions += [Action(what="preempt", name=each.name, reason=f"for {wanted.name}") for each in ended]
        self.actions.append(Action(what="start", name=wanted.name, placement=placement))

    def _try(self, wanted: Wanted) -> ServicePlacement | None:
        request = ServiceRequest(f"{wanted.name} (new)", wanted.service)
        return try_place(self.state, request, self.options.allocator)

    def _preempt(self, wanted: Wanted) -> tuple[ServicePlacement | None, list[Wanted]]:
        """End services of lower priority, lowest and newest first, until it fits; then keep all that need not end."""
        lower = [each for each in self.wanted if each.priority < wanted.priority and each.name in self.running]
        lower.sort(key=lambda each: (each.priority, -each.created))
        held, ended = {}, list[Wanted]()
        for each in lower:
            held[each.name] = self.running[each.name]
            self._release(each.name)
            ended.append(each)
            if placement := self._try(wanted):
                for spared in ended[:-1][::-1]:
                    if self._hold_again(held[spared.name]):
                        ended.remove(spared)
                return placement, ended
        for each in ended:
            self._hold_again(held[each.name])
        return None, []

    def _hold_again(self, placed: Placed) -> bool:
        try:
            self.state.hold(msgspec.structs.replace(placed.placement, request=placed.deployment))
        except InputError:
            return False
        self.running[placed.name] = placed
        return True

    def _drain(self, parts: Mapping[str, str]) -> None:
        drained = {p for part, condition in parts.items() if condition == "drained" for p in self.state.parts(part)}
        for each in list(self.running.values()):
            links = {self.state.cluster.links[self.state.cluster.link_id[h.link]].name for h in each.placement.hops}
            if self.moves and drained & {*each.placement.gpus, *links} and each.phase == "serving":
                request = ServiceRequest(f"{each.name} (new)", each.placement.service)
                if placement := try_place(self.state, request, self.options.allocator):
                    self.moves -= 1
                    self.actions.append(
                        Action(what="move", name=each.name, placement=placement, reason="its place is drained")
                    )

    def _defragment(self) -> None:
        while self.moves:
            known = {each.deployment: each for each in self.running.values()}
            fixed = self.state.running.keys() - known.keys()
            moved = defragment(self.state, 1, fixed=fixed)
            if not moved:
                return
            (move,) = moved
            each = known[move.after.request]
            self.state.release(each.deployment)
            self.state.hold(msgspec.structs.replace(move.after, request=f"{each.name} (new)"))
            self.state.hold(move.before)
            self.running.pop(each.name)
            self.moves -= 1
            reason = f"{move.gain:.2f} services more fit"
            self.actions.append(Action(what="move", name=each.name, placement=move.after, reason=reason))
