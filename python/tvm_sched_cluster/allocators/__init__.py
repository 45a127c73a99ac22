"""The allocators: each file has one method, which finds GPUs and circuits for a service."""
