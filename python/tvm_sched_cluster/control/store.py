"""`Store`: wanted and running services of a cluster, in one SQLite file that survives a kill at any moment.

Each change is one transaction together with its line in the audit log. SQLite's write-ahead log makes transactions atomic,
and `BEGIN IMMEDIATE` serialises the transactions of several processes. One controller at a time holds the lease, and each
of its writes checks that it still does.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from tvm_sched_runtime.errors import FormatError, InputError

from ..problem.service_placement import ServicePlacement

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that deployments may have."""
Phase = Literal["starting", "serving", "leaving"]
Condition = Literal["failed", "drained"]
_SCHEMA = """
create table meta (key text primary key, value text not null);
create table wanted (name text primary key, service text not null, priority integer not null, created real not null,
    expires real, generation integer not null default 0, reason text not null default '');
create table placed (name text not null, generation integer not null, placement text not null, phase text not null,
    primary key (name, generation));
create table parts (part text primary key, condition text not null);
create table audit (id integer primary key, at real not null, who text not null, what text not null, name text not null,
    detail text not null);
create table lease (id integer primary key check (id = 1), holder text not null, until real not null);
"""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A service that was asked for.

    Attributes
    ----------
    name, service : str
    priority : int
        Higher ones are placed first.
    created : float
        Seconds since 1970.
    expires : float or None
        When it ends, if it is not renewed.
    generation : int
        Of its last placement.
    reason : str
        Why it waits for a place.
    """

    name: str
    service: str
    priority: int = 0
    created: float = 0.0
    expires: float | None = None
    generation: int = 0
    reason: str = ""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A placement of a service; while it moves it has two. `deployment` is its name in the serving part."""

    name: str
    generation: int
    placement: ServicePlacement
    phase: Phase

    @property
    def deployment(self) -> str:
        """Name that no other placement has."""
        return f"{self.name}.{self.generation}"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit log."""

    id: int
    at: float
    who: str
    what: str
    name: str
    detail: str


class Store:
    """The store of a cluster.

    Parameters
    ----------
    path
        The file; `create` makes it.
    who : str
        Who writes, for the audit log and the lease.
    clock : callable
        Seconds since 1970.

    Raises
    ------
    FormatError
        No store, or one of another version.
    """

    def __init__(
        self, path: str | os.PathLike[str], who: str = "command", clock: Callable[[], float] = time.time
    ) -> None:
        self.path, self.who, self.clock = Path(path), who, clock
        if not self.path.is_file():
            raise FormatError(f"{self.path}: there is no such store; `tvm-sched cluster controller` makes one")
        self._db = _connect(self.path, VERSION)

    @staticmethod
    def create(path: str | os.PathLike[str], cluster: str, services: str, digest: str) -> None:
        """Make a store of a cluster, unless there is one.

        Raises
        ------
        InputError
            The store is of another cluster.
        """
        db = _connect(Path(path), 0, VERSION)
        try:
            db.execute("begin immediate")
            if db.execute("pragma user_version").fetchone()[0] == 0:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                rows = {"cluster": cluster, "services": services, "digest": digest}
                db.executemany("insert into meta values (?, ?)", rows.items())
                db.execute(f"pragma user_version = {VERSION}")
            db.execute("commit")
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{os.fspath(path)}: not a store ({error})") from None
        finally:
            db.close()
        meta = Store(path).meta
        if meta["digest"] != digest:
            raise InputError(
                f"{os.fspath(path)} is the store of {meta['cluster']!r}, another cluster; give another --store"
            )

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for tests that end the process between two statements."""
        return self._db

    @property
    def meta(self) -> dict[str, str]:
        """Names of the cluster and services, and the cluster's digest."""
        return dict(self._db.execute("select key, value from meta"))

    @contextmanager
    def transaction(self, holder: str = "") -> Iterator[sqlite3.Connection]:
        """Write all or nothing; with ``holder``, only while the lease is its own.

        Raises
        ------
        InputError
            The lease is another's.
        """
        self._db.execute("begin immediate")
        try:
            if holder:
                row = self._db.execute("select holder from lease").fetchone()
                if row is None or row[0] != holder:
                    raise InputError(f"another controller, {row[0] if row else 'none'}, holds the lease of {self.path}")
            yield self._db
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def log(self, what: str, name: str, detail: str = "") -> None:
        """Add a line to the audit log, within a transaction."""
        self._db.execute(
            "insert into audit (at, who, what, name, detail) values (?, ?, ?, ?, ?)",
            (self.clock(), self.who, what, name, detail),
        )

    def lease(self, seconds: float) -> None:
        """Take or renew the lease for some seconds.

        Raises
        ------
        InputError
            Another controller holds it.
        """
        with self.transaction() as db:
            row = db.execute("select holder, until from lease").fetchone()
            if row and row[0] != self.who and row[1] > self.clock():
                raise InputError(
                    f"controller {row[0]} holds {self.path} for another {row[1] - self.clock():.0f} s; stop it, or wait"
                )
            db.execute("insert or replace into lease values (1, ?, ?)", (self.who, self.clock() + seconds))

    def give_up(self) -> None:
        """Give the lease back."""
        with self.transaction() as db:
            db.execute("delete from lease where holder = ?", (self.who,))

    def submit(self, names: Sequence[str], service: str, priority: int = 0, lifetime: float | None = None) -> None:
        """Ask for a service under each of the names, for some seconds or for good: all of them, or none.

        Raises
        ------
        InputError
            A name is none or taken, or the lifetime is not above 0.
        """
        for name in names:
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"name is {name!r}; letters, digits, '.', '_' and '-' are allowed, a letter or digit first"
                )
        expires = _expiry(self.clock(), lifetime)
        with self.transaction() as db:
            for name in names:
                if db.execute("select 1 from wanted where name = ?", (name,)).fetchone():
                    raise InputError(f"a service {name!r} is wanted already; give another name")
                last = db.execute("select max(generation) from placed where name = ?", (name,)).fetchone()[0] or 0
                db.execute(
                    "insert into wanted values (?, ?, ?, ?, ?, ?, '')",
                    (name, service, priority, self.clock(), expires, last),
                )
                self.log("submit", name, f"{service}, priority {priority}" + (f", {lifetime:g} s" if lifetime else ""))

    def withdraw(self, name: str) -> None:
        """End a service; raise `InputError` if it is not wanted."""
        with self.transaction() as db:
            self._require(name)
            db.execute("delete from wanted where name = ?", (name,))
            self.log("withdraw", name)

    def renew(self, name: str, lifetime: float) -> None:
        """Let a service end this many seconds from now; raise `InputError` if it is not wanted, or ended already."""
        expires = _expiry(self.clock(), lifetime)
        with self.transaction() as db:
            self._require(name)
            db.execute("update wanted set expires = ? where name = ?", (expires, name))
            self.log("renew", name, f"{lifetime:g} s")

    def mark(self, part: str, condition: Condition | None) -> None:
        """Say that a part has failed, is drained, or works (None).

        Raises
        ------
        InputError
            It works already.
        """
        with self.transaction() as db:
            if condition is None:
                if not db.execute("delete from parts where part = ?", (part,)).rowcount:
                    raise InputError(f"{part!r} has not failed and is not drained; what has or is: "
                                     f"{', '.join(self.parts()) or 'nothing'}")  # fmt: skip
            else:
                db.execute("insert or replace into parts values (?, ?)", (part, condition))
            self.log(condition or "works", part)

    def _require(self, name: str) -> None:
        if not self._db.execute("select 1 from wanted where name = ?", (name,)).fetchone():
            known = [row[0] for row in self._db.execute("select name from wanted order by name limit 10")]
            raise InputError(f"no service {name!r} is wanted; there are {', '.join(known) or 'none'}")

    def wanted(self) -> list[Wanted]:
        """Return the services that were asked for: highest priority first, then in order of time."""
        fields = Wanted.__struct_fields__
        rows = self._db.execute(f"select {', '.join(fields)} from wanted order by priority desc, created, name")
        return [Wanted(**dict(zip(fields, row, strict=True))) for row in rows]

    def placed(self) -> list[Placed]:
        """Return all placements."""
        rows = self._db.execute("select name, generation, placement, phase from placed order by name, generation")
        return [
            Placed(name=name, generation=g, placement=msgspec.json.decode(text, type=ServicePlacement), phase=phase)
            for name, g, text, phase in rows
        ]

    def serving(self, name: str) -> list[str]:
        """Return the deployments that serve a service, or else its replicas ``NAME-0``, ``NAME-1``, ...

        Raises
        ------
        InputError
            Neither is wanted.
        """
        wanted = [each.name for each in self.wanted()]
        replicas = [each for each in wanted if re.fullmatch(re.escape(name) + r"-\d+", each)]
        own = {name} if name in wanted else set(replicas)
        if not own:
            self._require(name)
        return [each.deployment for each in self.placed() if each.name in own and each.phase == "serving"]

    def parts(self) -> dict[str, Condition]:
        """Return the parts that have failed or are drained."""
        return dict(self._db.execute("select part, condition from parts order by part"))

    def events(self, last: int = 100, since: float = 0.0, what: str = "") -> list[Event]:
        """Return lines of the audit log, the newest last."""
        rows = self._db.execute(
            "select id, at, who, what, name, detail from audit where at >= ? and (? = '' or what = ?) "
            "order by id desc limit ?",
            (since, what, what, last),
        ).fetchall()
        return [Event(**dict(zip(Event.__struct_fields__, row, strict=True))) for row in reversed(rows)]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _expiry(now: float, lifetime: float | None) -> float | None:
    if lifetime is None:
        return None
    if not 0 < lifetime < float("inf"):
        raise InputError(f"the lifetime is {lifetime}; seconds above 0 are allowed")
    return now + lifetime


def _connect(path: Path, *versions: int) -> sqlite3.Connection:
    """Open a store of one of these versions; 0 is an empty file. What is no store stays as it is."""
    try:
        db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        with ExitStack() as on_error:
            on_error.callback(db.close)
            version = db.execute("pragma user_version").fetchone()[0]
            if version not in versions:
                raise FormatError(f"{path}: version {version} of a store; this program reads version {VERSION}")
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = full")
            on_error.pop_all()
    except sqlite3.Error as error:
        raise FormatError(f"{path}: cannot be opened as a store ({error})") from None
    return db
