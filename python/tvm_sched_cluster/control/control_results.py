"""Results that the commands of a controlled cluster print."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table

from tvm_sched.report.tables import table

from .reconcile import Action
from .store import Condition, Event, Placed, Store, Wanted


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a store.

    Attributes
    ----------
    wanted : list of Wanted
    placed : list of Placed
    parts : dict of str to {"failed", "drained"}
    """

    wanted: list[Wanted]
    placed: list[Placed]
    parts: dict[str, Condition]

    @staticmethod
    def fields(store: Store) -> dict[str, Any]:
        """Return the fields of a store."""
        return {"wanted": store.wanted(), "placed": store.placed(), "parts": store.parts()}


class Controlled(Changed, frozen=True, kw_only=True):
    """Actions of a controller, taken or planned."""

    actions: list[Action]

    @classmethod
    def of(cls, store: Store, actions: Sequence[Action]) -> Controlled:
        """Summarise actions and what the store holds now."""
        return cls(actions=list(actions), **cls.fields(store))


class Events(Changed, frozen=True, kw_only=True):
    """The last lines of the audit log."""

    events: list[Event]


def actions_table(actions: Sequence[Action]) -> Table:
    """Return a table with a row for each action."""
    rows = [(a.what, a.name, " ".join(a.placement.gpus) if a.placement else "", a.reason) for a in actions]
    return table(("action", "service", "GPUs", "reason"), rows, text_columns=4)


def services_table(store: Store) -> Table:
    """Return a table with a row for each wanted service."""
    placed: dict[str, list[Placed]] = {}
    for each in store.placed():
        placed.setdefault(each.name, []).append(each)
    rows = [
        (
            each.name,
            each.service,
            str(each.priority),
            ", ".join(f"{p.phase} on {' '.join(p.placement.gpus)}" for p in placed.get(each.name, ()))
            or f"waits: {each.reason or 'not seen by a controller yet'}",
        )
        for each in store.wanted()
    ]
    return table(("name", "service", "priority", "state"), rows, text_columns=4)


def events_table(events: Sequence[Event]) -> Table:
    """Return a table with a row for each event."""
    rows = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(e.at)), e.who, e.what, e.name, e.detail) for e in events
    ]  # fmt: skip
    return table(("time (UTC)", "by", "what", "name", "detail"), rows, text_columns=5)
