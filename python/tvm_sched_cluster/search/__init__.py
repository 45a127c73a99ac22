"""The state of a cluster and the searches of ``cpp/cluster`` for mixes of GPUs and their embeddings."""
