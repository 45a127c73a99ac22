"""Serve compiled models to standard clients on one machine: the Open Inference Protocol over HTTP, gRPC and shared memory.

``tvm-sched serve`` and ``tvm-sched-run serve`` start it (`tvm_sched_serve.command`). It needs the extra ``serve`` of the
distribution, and neither a compiler nor Ray.
"""
