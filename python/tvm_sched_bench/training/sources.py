"""Read all available training data of the learned cost model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata

from tvm_sched.cost_model.profile import Profile
from tvm_sched.cost_model.samples import Samples

from . import aiconfigurator, launches
from . import vidur as vidur_data


def read_samples(
    profiles: Sequence[str | os.PathLike[str]] = (),
    *,
    published: bool = True,
    vidur: str | os.PathLike[str] | None = None,
) -> tuple[Samples, dict[str, str]]:
    """Read the measurements from all sources, and remarks on them for the user.

    Parameters
    ----------
    profiles : sequence of path
        Files of `tvm-sched profile`, or of launches of libraries (`launches`).
    published : bool
        Whether to read the package aiconfigurator-core.
    vidur : path, optional
        The folder of vidur's compute profiles.

    Raises
    ------
    InputError
        A source is missing or wrong, or there is no source.
    """
    parts: list[Samples] = []
    about: dict[str, str] = {}
    if published:
        parts += aiconfigurator.read()
        about["aiconfigurator-core"] = metadata.version("aiconfigurator-core")
    if vidur is not None:
        parts += vidur_data.read(vidur)
        about["vidur"] = "compute profiles of Llama-like layers"
    for path in profiles:
        if launches.is_launches(path):
            parts.append(launches.read(path))
            about[os.path.basename(path)] = f"{len(parts[-1])} kernels of libraries in float32 on H100"
            continue
        profile = Profile.load(path)
        parts.append(profile.samples())
        about[os.path.basename(path)] = f"{len(profile.kernels)} kernels on {profile.machine.processor}"
    return Samples.concatenate(parts), about
