"""Cases of `test_lifecycle.py` that other tests use, too."""

import numpy as np


def held(state):
    """Counts of free and held GPUs and fibres, from the placements alone."""
    gpus = [gpu for placement in state.running.values() for gpu in placement.gpus]
    hops = [(hop.link, hop.fibre) for placement in state.running.values() for hop in placement.hops]
    assert len(set(gpus)) == len(gpus)
    assert len(set(hops)) == len(hops)
    failed = set(state.failed)
    assert not failed.intersection(gpus)
    assert not failed.intersection(link for link, _ in hops)
    alive = [gpu for gpu in state.cluster.gpus if gpu.name not in failed]
    free = np.bincount([gpu.pool for gpu in alive if gpu.name not in set(gpus)], minlength=len(state.gpus))
    assert (free == state.gpus).all()
    used = [sum(link == made.name for link, _ in hops) for made in state.cluster.links]
    fibres = [0 if made.name in failed else made.fibres - n for made, n in zip(state.cluster.links, used, strict=True)]
    assert fibres == state.fibres.tolist()
