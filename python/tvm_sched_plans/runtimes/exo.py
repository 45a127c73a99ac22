"""exo: whole layers on devices in a ring, one after another (pipeline sharding)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..language import by_layer
from ..places import Machine, device_place
from ..unit_chain import Chain, segments
from .base import GB, Case, PlanRequest, Runtime, Split, placed_in_turn


class Exo(Runtime):
    """Shards of an instance: first layer, and layer after the last one, of each device of the ring."""

    name = "exo"
    title = "exo"
    tried = (
        "exo's rule (`src/exo/master`, commits 028cc625, 027f2373) worked by hand on small cases; no exo was started"
    )
    cannot = (
        "the order in which weights are loaded, and reads from host memory",
        "cuts within a layer: the embedding is with the first layer, norm and last layer are with the last one",
        "layers on the host, and streams",
    )
    overhead = int(0.9 * GB)
    overhead_is = "context and workspaces of the array library, assumed as for PyTorch"
    mixtures = True
    file = "exo.json"

    def cases(self, request: PlanRequest) -> list[Case]:
        """Return the case of whole layers on devices in any order."""
        places = tuple(device_place(device, self.room(request, device)) for device in self.gpus(request))
        model = by_layer(self.language_model(request), ends=True)
        return [Case(Chain.of(model, Machine(request.topology, places), request.costs))]

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return exo's own split, which is by available memory alone."""
        chain = cases[0].chain
        free = [place.total for place in chain.machine.places]
        used = smallest_ring(free, int(chain.weight.sum()))
        counts = dict(zip(used, by_memory(len(chain.model.units), [free[p] for p in used]), strict=True))
        placement = placed_in_turn([counts.get(p, 0) for p in range(len(free))])
        return [Split("layers by available memory", cases[0], placement)]

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Return the shards in the order of the ring."""
        places = split.case.chain.machine.places
        shards = [
            {"device": places[p].name, "device_rank": rank, "start_layer": a, "end_layer": b}
            for rank, (p, a, b) in enumerate(segments(split.placement))
        ]
        return {"sharding": "Pipeline", "n_layers": len(split.placement), "shards": shards}

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return the shards as JSON; the numbers are those of `PipelineShardMetadata` in exo's instances."""
        return {self.file: json.dumps(self.settings(request, split), indent=2) + "\n"}


def smallest_ring(free: Sequence[int], needed: int) -> tuple[int, ...]:
    """Return the devices that exo chooses: as few as have the model's bytes, of those the ones with the most memory.

    All devices if even all have too little; exo refuses the model then.
    """
    by_size = sorted(range(len(free)), key=lambda p: -free[p])
    enough = (n for n in range(1, len(free)) if sum(free[p] for p in by_size[:n]) >= needed)
    return tuple(sorted(by_size[: next(enough, len(free))]))


def by_memory(layers: int, free: Sequence[int]) -> list[int]:
    """Return exo's numbers of layers (`allocate_layers_proportionally`): by largest remainders, each device at least one.

    A device that would have none takes one from the device that has most. With more devices than layers, which exo
    refuses, the last devices have none.
    """
    free = free[:layers]
    exact = [layers * memory / sum(free) for memory in free]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(free)), key=lambda p: exact[p] - counts[p], reverse=True)
    for p in by_remainder[: layers - sum(counts)]:
        counts[p] += 1
    for p, count in enumerate(counts):
        if count == 0:
            counts[counts.index(max(counts))] -= 1
            counts[p] = 1
    return counts
