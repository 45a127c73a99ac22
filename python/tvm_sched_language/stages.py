"""`StageThreads`: run rows through the stages of a pipeline, several runs at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tvm_sched_runtime.runtime import ScheduledModule


def stage_file(artifact: Path, stage: int) -> Path:
    """Return the file of a pipeline's stage: ``model.so``, ``model.stage1.so``, ..."""
    return artifact if stage == 0 else artifact.with_suffix(f".stage{stage}{artifact.suffix}")


@dataclass(frozen=True)
class StagedRun:
    """What a run gives."""

    result: npt.NDArray[Any]
    """Logits, or tokens where the model was compiled for GPUs."""
    seconds: float
    """Of the stage that took longest."""


class StageThreads:
    """A thread for each stage, which takes runs in their order; meanwhile the stage before computes the next run."""

    def __init__(self, stages: Sequence[ScheduledModule]) -> None:
        self._stages = tuple(stages)
        self._threads = [ThreadPoolExecutor(1, f"stage {k}") for k in range(len(stages))]

    def submit(self, tokens: Any, positions: Any, sequences: Any, *outputs: Any) -> Future[StagedRun]:
        """Begin a run; a plan that has all layers takes the same arguments."""
        answer: Future[StagedRun] = Future()
        self._hand_on(0, tokens, (positions, sequences), outputs, 0.0, answer)
        return answer

    def _hand_on(
        self,
        stage: int,
        rows: Any,
        rest: tuple[Any, ...],
        outputs: tuple[Any, ...],
        longest: float,
        answer: Future[StagedRun],
    ) -> None:
        module, last = self._stages[stage], stage == len(self._stages) - 1

        def work() -> None:
            try:
                result = module.run(rows, *rest, *(outputs if last else ()))[0]
                seconds = max(longest, module.latency())
            except BaseException as failure:  # raised where the answer is taken
                answer.set_exception(failure)
                return
            if last:
                answer.set_result(StagedRun(result, seconds))
            else:
                self._hand_on(stage + 1, result, rest, outputs, seconds, answer)

        self._threads[stage].submit(work)
