"""The queue: order, batches, limits, time-outs, cancellation, drain. A run ends when the test lets it."""

import asyncio
import threading

import numpy as np
import pytest
from inference_server_values import until

from tvm_sched_runtime.errors import ExecutionError
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions
from tvm_sched_serve.failures import Busy, Failed, Late, RequestError


def row(number, count=1):
    return [np.full((count, 3), number, np.float32)]


async def busy_queue(made, **options):
    """A queue whose model computes a first request."""
    queue = ExecutionQueue(made.model, QueueOptions(**options))
    first = asyncio.create_task(queue.submit(row(0)))
    await until(lambda: made.module.batches)
    return queue, first


async def test_priorities_then_order(blocking):
    made = blocking()
    queue, first = await busy_queue(made)
    tasks = [asyncio.create_task(queue.submit(row(n), priority)) for n, priority in ((1, 9), (2, 5), (3, 9), (4, 1))]
    await until(lambda: queue.waiting == 4)
    made.module.go.set()
    await asyncio.gather(first, *tasks)
    await queue.drain()
    assert [int(batch[0, 0]) for batch in made.module.batches] == [0, 4, 2, 1, 3]


async def test_requests_join_to_batches_and_each_gets_its_rows(blocking):
    made = blocking()
    queue, first = await busy_queue(made, batch_delay=0.0)
    tasks = [asyncio.create_task(queue.submit(row(n, rows))) for n, rows in ((1, 1), (2, 2), (3, 2))]
    await until(lambda: queue.waiting == 3)
    made.module.go.set()
    results = await asyncio.gather(first, *tasks)
    assert [batch.shape[0] for batch in made.module.batches] == [1, 4, 2]  # 1 + 2 rows are padded to 4
    assert made.module.batches[1][3].tolist() == [0, 0, 0]
    for number, count, (value,) in zip((0, 1, 2, 3), (1, 1, 2, 2), results, strict=True):
        np.testing.assert_array_equal(value, row(number, count)[0])
    assert {rows: counts[0] for rows, counts in queue.statistics.batches.items()} == {1: 1, 3: 1, 2: 1}


async def test_a_batch_waits_no_longer_than_its_delay_and_not_when_it_is_full(blocking):
    made = blocking()
    made.module.go.set()
    queue = ExecutionQueue(made.model, QueueOptions(batch_delay=30.0))
    await asyncio.wait_for(asyncio.gather(*(queue.submit(row(n)) for n in range(4))), 10)
    short = ExecutionQueue(made.model, QueueOptions(batch_delay=0.02))
    await asyncio.wait_for(short.submit(row(9)), 10)
    assert [batch.shape[0] for batch in made.module.batches] == [4, 1]


async def test_a_full_queue_refuses_with_a_time_to_come_back(blocking):
    made = blocking()
    queue, first = await busy_queue(made, places=1)
    second = asyncio.create_task(queue.submit(row(1)))
    await until(lambda: queue.waiting == 1)
    with pytest.raises(Busy) as refused:
        await queue.submit(row(2))
    made.module.go.set()
    await asyncio.gather(first, second)
    assert refused.value.retry_after >= 1
    assert len(made.module.batches) == 2


async def test_late_requests_fail_and_are_not_computed(blocking):
    made = blocking()
    queue, first = await busy_queue(made)
    with pytest.raises(Late, match="waiting"):
        await queue.submit(row(1), timeout=0.02)
    assert queue.waiting == 0
    made.module.go.set()
    await first
    made.module.go.clear()
    with pytest.raises(Late, match="running"):
        await queue.submit(row(2), timeout=0.02)
    made.module.go.set()
    await queue.drain()
    assert [int(batch[0, 0]) for batch in made.module.batches] == [0, 2]


async def test_cancelled_requests_give_back_their_place(blocking):
    made = blocking()
    queue = ExecutionQueue(made.model, QueueOptions(places=1))
    first = asyncio.create_task(queue.submit(row(0)))
    await until(lambda: made.module.batches)
    for _ in range(3):
        gone = asyncio.create_task(queue.submit(row(1)))
        await until(lambda: queue.waiting == 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert queue.waiting == 0
    made.module.go.set()
    await first
    await queue.drain()
    assert len(made.module.batches) == 1


async def test_drain_waits_for_what_waits_and_runs(blocking):
    made = blocking()
    queue = ExecutionQueue(made.model, QueueOptions())
    tasks = [asyncio.create_task(queue.submit(row(n))) for n in range(3)]
    await until(lambda: made.module.batches)
    drained = asyncio.create_task(queue.drain())
    await asyncio.sleep(0.02)
    assert not drained.done()
    made.module.go.set()
    await asyncio.wait_for(drained, 10)
    assert all(task.done() for task in tasks)


async def test_a_failed_run_fails_its_requests_only(blocking):
    made = blocking()
    run = made.module.run

    def fails(*arrays):
        if arrays[0][0, 0] == 7:
            raise RuntimeError("secret of this machine")
        return run(*arrays)

    made.module.run = fails
    made.module.go.set()

    queue = ExecutionQueue(made.model, QueueOptions())
    with pytest.raises(Failed) as failed:
        await queue.submit(row(7))
    assert "secret" not in str(failed.value)
    (value,) = await queue.submit(row(8))
    np.testing.assert_array_equal(value, row(8)[0])


async def test_rows_that_no_batch_holds(blocking):
    made = blocking()
    queue = ExecutionQueue(made.model, QueueOptions(batch_delay=0.0))
    with pytest.raises(RequestError, match="from 1 to 4"):
        await queue.submit(row(0, 5))
    apart = ExecutionQueue(made.model, QueueOptions())
    with pytest.raises(RequestError, match="allowed are"):
        await apart.submit(row(0, 3))


def seem(queue, seconds):
    """Let the last runs seem to have taken some seconds."""
    for _ in range(20):
        queue._recent.note(seconds)


async def test_short_runs_need_no_other_thread(blocking):
    """After some short runs they are made in the caller's thread, and after a long one in another again."""
    made = blocking()
    made.module.go.set()
    threads = []
    run = made.module.run
    made.module.run = lambda *arrays: threads.append(threading.current_thread()) or run(*arrays)
    queue = ExecutionQueue(made.model, QueueOptions())
    x = np.ones((1, 3), np.float32)
    for number in range(20):
        if number == 10:
            seem(queue, 1e-5)  # on a busy machine they may have taken longer
        np.testing.assert_array_equal((await queue.submit([x + number]))[0], x + number)
        if number == 10:
            assert threads[-1] is threading.current_thread()
    assert threads[0] is not threading.current_thread()
    seem(queue, 1e-3)
    assert not queue.runs_at_once
    await asyncio.gather(*(queue.submit([x]) for _ in range(5)))
    assert threads[-1] is not threading.current_thread()
    assert (queue.waiting, queue.running, queue.statistics.successes) == (0, 0, 25)
    made.module.run = lambda *arrays: (_ for _ in ()).throw(ExecutionError("no memory"))
    seem(queue, 1e-5)
    assert queue.runs_at_once
    with pytest.raises(Failed):
        await queue.submit([x])
    await queue.drain()


@pytest.mark.parametrize(("instances", "short"), [(1, True), (2, False)])
async def test_a_run_is_short_though_it_waited_for_the_lock_of_python(blocking, monkeypatch, instances, short):
    """The executor tells its own time, which is another run's where several proceed at once."""
    made = blocking()
    made.module.go.set()
    made.module.seconds = 1e-5
    told = ExecutionQueue._seconds_alone
    monkeypatch.setattr(ExecutionQueue, "_seconds_alone", lambda queue, _: told(queue, 1.0))  # as under load
    queue = ExecutionQueue(made.model, QueueOptions(instances=instances))
    for n in range(16):
        await queue.submit(row(n))
    assert queue.runs_at_once == short
    await queue.drain()


async def test_a_thread_goes_on_with_what_waits_without_the_event_loop(blocking):
    made = blocking()
    queue, first = await busy_queue(made)
    tasks = [asyncio.create_task(queue.submit(row(n))) for n in (1, 2)]
    await until(lambda: queue.waiting == 2)
    made.module.go.set()
    queue._threads.submit(int).result()  # the event loop is held up until all runs have ended
    assert [int(batch[0, 0]) for batch in made.module.batches] == [0, 1, 2]
    assert (queue.waiting, queue.running) == (0, 1)
    await asyncio.gather(first, *tasks)
    assert (queue.waiting, queue.running, queue.statistics.successes) == (0, 0, 3)
    await queue.drain()


async def test_a_short_run_waits_for_the_one_under_way(blocking):
    """One instance makes one run at a time, in whichever thread; and requests are not overtaken."""
    made = blocking()
    queue, first = await busy_queue(made)
    seem(queue, 1e-5)
    tasks = [asyncio.create_task(queue.submit(row(n))) for n in (1, 2)]
    await until(lambda: queue.waiting == 2)
    assert len(made.module.batches) == 1
    made.module.go.set()
    await asyncio.gather(first, *tasks)
    await queue.drain()
    assert [int(batch[0, 0]) for batch in made.module.batches] == [0, 1, 2]
