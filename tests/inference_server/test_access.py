"""Tokens with a quota: how many requests of a client may be under way."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_sched_runtime.errors import InputError
from tvm_sched_serve.access import Access, read_tokens
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions
from tvm_sched_serve.failures import OverQuota
from tvm_sched_serve.inference import GivenInput, GivenRequest, infer
from tvm_sched_serve.shared_memory import SharedMemory


async def test_a_token_has_as_many_requests_under_way_as_its_line_says(blocking, tmp_path):
    (tmp_path / "tokens").write_text("few-requests 2\nany-number\n")
    access = Access(read_tokens(tmp_path / "tokens"))
    made = blocking((1,))
    x = np.ones((1, 3), np.float32)
    queue = ExecutionQueue(made.model, QueueOptions())
    repository = SimpleNamespace(find=lambda name, version: queue)

    async def ask(token):
        access.check(b"Bearer " + token, administration=False)
        given = [GivenInput("x", "FP32", x.shape, content=memoryview(x.tobytes()))]
        return await infer(repository, SharedMemory(False), GivenRequest("m", "", "", {}, given, []))

    async def refused(token):
        with pytest.raises(OverQuota, match="2 requests with this token are under way") as error:
            await ask(token)
        assert (error.value.status, error.value.retry_after) == (429, 1)

    begun = [asyncio.ensure_future(ask(b"few-requests")) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.ensure_future(refused(b"few-requests"))
    begun += [asyncio.ensure_future(ask(b"any-number")) for _ in range(3)]
    begun[1].cancel()
    await asyncio.wait(begun[1:2])
    begun[1] = asyncio.ensure_future(ask(b"few-requests"))
    await asyncio.sleep(0)
    await asyncio.ensure_future(refused(b"few-requests"))
    made.module.go.set()
    results = await asyncio.gather(*begun)
    assert all(np.array_equal(result.outputs[0].value, x) for result in results)
    await asyncio.ensure_future(ask(b"few-requests"))
    await queue.drain()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("long-enough 0\n", "at least 1"),
        ("long-enough two\n", "at least 1"),
        ("long-enough 1 2\n", "one a line"),
        ("short\n", "at least 8 letters"),
        ("\n", "holds no token"),
    ],
)
def test_wrong_lines_are_told(tmp_path, text, message):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(InputError, match=message):
        read_tokens(tmp_path / "tokens")
