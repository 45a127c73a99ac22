"""A stage in this process, for pipelines that are served without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tvm_sched_runtime.pipeline import Manifest, load_stage

from .tensor_channel import Array


class LocalStage:
    """A stage that threads of this process run, one for each replica; see `Stage`."""

    def __init__(self, folder: Path, manifest: Manifest, number: int, replicas: int) -> None:
        self._module = load_stage(folder, number, manifest)
        if replicas > 1:
            self._module.configure(instances=replicas)
        self._threads = ThreadPoolExecutor(replicas, f"tvm-sched-stage{number}")

    async def run(self, tensors: Sequence[Array]) -> tuple[list[Array], float]:
        """Return outputs and seconds of computing."""
        begin = time.perf_counter()
        run = asyncio.get_running_loop().run_in_executor(self._threads, self._module.run, *tensors)
        try:
            outputs = await asyncio.shield(run)
        except asyncio.CancelledError:  # the stage is busy until its run has ended
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await run
            raise
        return outputs, time.perf_counter() - begin

    async def why(self) -> str:
        """Say why the stage does not answer: it is busy."""
        return ""

    def retire(self) -> None:
        """Go on with the requests that are here."""

    async def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)
