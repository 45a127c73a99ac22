"""Pods with CPU, memory and shares of GPUs on nodes of several kinds: FGD's problem (Weng et al., USENIX ATC 2023)."""
