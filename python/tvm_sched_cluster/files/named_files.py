"""Load clusters, services and demands by name: presets of the paper RAMPA, or files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import read_bytes
from tvm_sched_runtime.presets import neither_preset_nor_file, preset_files

from ..problem.cluster import Cluster
from ..problem.service import Service
from .cluster_file import parse_cluster
from .services_file import parse_services

DEMANDS: dict[str, dict[str, float]] = {
    "same": {"high-throughput": 1 / 3, "low-delay": 1 / 3, "huge-model": 1 / 3},
    "high-throughput": {"high-throughput": 0.8, "low-delay": 0.1, "huge-model": 0.1},
    "low-delay": {"high-throughput": 0.1, "low-delay": 0.8, "huge-model": 0.1},
    "huge-model": {"high-throughput": 0.1, "low-delay": 0.1, "huge-model": 0.8},
}
"""Probabilities of the categories of services: RAMPA, Table IV."""

_SERVICES = "rampa-services"
_PRESETS = preset_files(Path(__file__).parents[1] / "presets")
_SERVICES_FILE = _PRESETS.pop(_SERVICES)


def preset_names() -> tuple[str, ...]:
    """Return the names of the clusters that come with the package.

    Examples
    --------
    >>> from tvm_sched_cluster import preset_names
    >>> preset_names()
    ('rampa-base', 'rampa-high-bandwidth', 'rampa-high-performance', 'rampa-large')
    """
    return tuple(_PRESETS)


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """Return the cluster of a preset (``"rampa-base"``), of a TOML file, or of a graph file of RAMPA's simulator (``.txt``).

    Raises
    ------
    FormatError
        Neither a preset nor a file, or a file that is not what ``docs/formats/cluster.md`` says.
    TopologyError
        A file whose cluster breaks a rule.

    Examples
    --------
    >>> from tvm_sched_cluster import load_cluster
    >>> len(load_cluster("rampa-base").gpus)
    640
    """
    text = os.fspath(name_or_path)
    if text in _PRESETS:
        return _preset(text)
    if not Path(text).is_file():
        raise neither_preset_nor_file("cluster", text, _PRESETS)
    if text.endswith(".txt"):
        from .rampa_simulator_files import read_graph

        return read_graph(text)
    return parse_cluster(read_bytes(text), text)


@lru_cache
def _preset(name: str) -> Cluster:
    return parse_cluster(read_bytes(_PRESETS[name]), os.fspath(_PRESETS[name]))


def load_services(name_or_path: str | os.PathLike[str] = _SERVICES) -> tuple[Service, ...]:
    """Return the services of a TOML file, of a folder of the simulator's models, or the paper's six (``"rampa-services"``).

    Raises
    ------
    FormatError, InputError
        As `load_cluster`.

    Examples
    --------
    >>> from tvm_sched_cluster import load_services
    >>> [service.name for service in load_services()]
    ['service1', 'service2', 'service3', 'service4', 'service5', 'service6']
    """
    path = _SERVICES_FILE if name_or_path == _SERVICES else Path(name_or_path)
    if path.is_dir():
        from .rampa_simulator_files import read_models

        return read_models(path)
    return tuple(_with_path(service, path) for service in parse_services(read_bytes(path), os.fspath(path)))


def _with_path(service: Service, file: Path) -> Service:
    """Return a service whose ``model_file`` is an absolute path; in the file it is relative to the file's folder."""
    if not service.model_file:
        return service
    return msgspec.structs.replace(service, model_file=os.fspath(file.absolute().parent / service.model_file))


def demand_of_services(case: str, services: Sequence[Service]) -> dict[str, float]:
    """Return the probability of each service in a case of Table IV; a category's services share its probability equally.

    Raises
    ------
    InputError
        There is no such case, or no service of a category.

    Examples
    --------
    >>> from tvm_sched_cluster import demand_of_services, load_services
    >>> round(demand_of_services("same", load_services())["service1"], 3)
    0.167
    """
    if case not in DEMANDS:
        raise InputError(f"there is no demand {case!r}; there are {', '.join(DEMANDS)}")
    demand: dict[str, float] = {}
    for category, probability in DEMANDS[case].items():
        members = [service.name for service in services if service.category == category]
        if not members:
            raise InputError(f"demand {case!r} needs services of category {category!r}, and the file has none")
        demand |= {name: probability / len(members) for name in members}
    return demand
