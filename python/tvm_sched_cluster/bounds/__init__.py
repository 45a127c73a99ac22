"""Upper bounds on how many services any allocator can place; the proof is ``docs/proofs/cluster_mixes.md``."""
