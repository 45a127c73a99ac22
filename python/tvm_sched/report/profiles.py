"""Profiles of kernels and learned cost models: summaries and tables."""

from __future__ import annotations

import msgspec
from rich.table import Table

from ..cost_model.contention import Contention
from ..cost_model.device_properties import DeviceProperties
from ..cost_model.interference import fit_profile
from ..cost_model.profile import Copies, Machine, Profile
from .tables import table
from .units import format_time


class ProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of measured kernels: their number and device, and the interference of pairs."""

    contention: Contention | None
    kernels: int
    machine: Machine
    device: DeviceProperties
    latencies: dict[str, float]
    copies: tuple[Copies, ...]
    pairs: int

    @classmethod
    def of(cls, profile: Profile) -> ProfileSummary:
        """Summarise a profile."""
        same = {name: getattr(profile, name) for name in ("machine", "device", "latencies", "copies")}
        return cls(**same, contention=fit_profile(profile), kernels=len(profile.kernels), pairs=len(profile.pairs))

    def sentence(self) -> str:
        """Summarise the pairs of kernels in a sentence."""
        if self.contention is None:
            return ""
        low, high = self.contention.interval
        return (
            f"{self.pairs} pairs: serial share {self.contention.serial_share:.2f}, contention {self.contention.excess:.2f} "
            f"of what they ask for beyond the device; 90 % take {low:.2f} to {high:.2f} times what that says"
        )


def profile_tables(profile: Profile) -> list[Table]:
    """Return the slowest kernels, and the first pairs of kernels that were measured in parallel."""
    rows = []
    for row in sorted(profile.kernels, key=lambda row: -row.seconds)[:10]:
        times = (format_time(value) if value else "-" for value in (row.in_run, row.warm, row.cold))
        rows.append((_short(row.signature), *times, f"{row.error:.1%}"))
    beside = []
    for pair in profile.pairs[:10]:
        factors = (f"{together / alone:.2f}" for alone, together in zip(pair.alone, pair.beside, strict=True))
        beside.append((_short(pair.first), _short(pair.second), *factors))
    tables = [table(("slowest kernels", "in the run", "warm", "cold", "± (95 %)"), rows)]
    return [*tables, table(("kernel", "beside kernel", "times as long", "the other"), beside)] if beside else tables


def _short(signature: str) -> str:
    return signature if len(signature) < 60 else signature[:57] + "..."
