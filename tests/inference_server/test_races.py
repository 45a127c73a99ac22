"""What comes between a request's steps: cancellations, regions, reloads and unloads in the middle of a run or of a body."""

import asyncio
import os
from multiprocessing.shared_memory import SharedMemory as Segment
from types import SimpleNamespace

import numpy as np
import pytest
from inference_server_values import until

from tvm_sched_serve.access import Access
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions
from tvm_sched_serve.failures import NotFound
from tvm_sched_serve.http_server import HttpLimits, InferenceServer
from tvm_sched_serve.inference import GivenInput, GivenRequest, WantedOutput, infer
from tvm_sched_serve.metrics import Metrics
from tvm_sched_serve.repository import Models
from tvm_sched_serve.request_context import Recorder
from tvm_sched_serve.shared_memory import SharedMemory

ROW = np.arange(3, dtype=np.float32).reshape(1, 3)


class OneModel(Models):
    """The model `m`, whose queue the test makes."""

    def __init__(self, make, on_change=lambda queue, opened: None):
        super().__init__(on_change)
        self.make = make

    def names(self):
        return ["m"]

    def known_versions(self, name):
        return ["1"] if name == "m" else []

    async def open(self, name):
        return {"1": self.make()}


def queue_of(made, **options):
    made.module.configure = lambda **_: None
    return ExecutionQueue(made.model, QueueOptions(**options))


async def test_a_queue_is_empty_when_all_that_waited_was_cancelled_as_a_run_ended(blocking):
    made = blocking()
    queue = queue_of(made)
    first = asyncio.create_task(queue.submit([ROW]))
    await until(lambda: made.module.batches)
    second = asyncio.create_task(queue.submit([ROW]))
    await until(lambda: queue.waiting == 1)
    made.module.go.set()
    queue._threads.submit(int).result()  # the run has ended, which the event loop does not know yet
    second.cancel()
    await asyncio.wait_for(queue.drain(), 10)
    await first
    assert second.cancelled()


def test_a_region_that_is_unregistered_during_a_run_stays_open_until_its_output_is_written(blocking):
    """Else the output goes to whatever got the number of the closed descriptor: here, another client's segment."""
    made = blocking()
    segments = [Segment(create=True, size=ROW.nbytes) for _ in range(2)]

    async def work():
        memory = SharedMemory(allowed=True)
        memory.register("mine", segments[0].name, 0, ROW.nbytes)
        descriptor = memory.find("mine").descriptor
        wanted = WantedOutput("x", {"shared_memory_region": "mine", "shared_memory_byte_size": ROW.nbytes})
        given = GivenInput("x", "FP32", (1, 3), content=memoryview(bytearray(ROW.tobytes())))
        models = OneModel(lambda: queue_of(made))
        await models.load_all()
        asked = asyncio.create_task(infer(models, memory, GivenRequest("m", "", "", {}, [given], [wanted])))
        await until(lambda: made.module.batches)
        memory.unregister("mine")
        memory.register("another's", segments[1].name, 0, ROW.nbytes)
        made.module.go.set()
        await asked
        del asked
        memory.unregister()
        await models.drain()
        return descriptor

    try:
        descriptor = asyncio.run(work())
        assert bytes(segments[0].buf[: ROW.nbytes]) == ROW.tobytes()
        assert bytes(segments[1].buf[: ROW.nbytes]) == bytes(ROW.nbytes)
        assert not os.path.exists(f"/proc/self/fd/{descriptor}")
    finally:
        for segment in segments:
            segment.close()
            segment.unlink()


async def test_an_unload_goes_on_when_who_asked_for_it_goes(blocking):
    made, changes = blocking(), []
    models = OneModel(lambda: queue_of(made), lambda queue, opened: changes.append(opened))
    await models.load_all()
    asked = asyncio.create_task(models.find("m").submit([ROW]))
    await until(lambda: made.module.batches)
    unload = asyncio.create_task(models.unload("m"))
    await until(lambda: not models.has("m"))
    unload.cancel()
    await asyncio.wait([unload])
    made.module.go.set()
    await asked
    await until(lambda: changes == [True, False])
    with pytest.raises(NotFound):
        await models.unload("m")


async def test_a_model_that_is_loaded_during_a_trace_is_recorded(blocking):
    made, traced = blocking(), []
    recorder = Recorder()
    recorder.add(SimpleNamespace(timelines=True))

    def change(queue, opened):
        queue.recorder = recorder
        queue.model.module.configure = lambda trace: traced.append(trace)

    await OneModel(lambda: queue_of(made), change).load_all()
    assert traced == [True]


def test_a_version_has_one_line_of_metrics_while_its_last_queue_runs_empty(blocking):
    metrics = Metrics()
    queues = [queue_of(blocking()) for _ in range(2)]
    for number, queue in enumerate(queues, 1):
        metrics.change(queue, True)
        queue.waiting, queue.statistics.executions = number, 10 * number
    lines = metrics.text().decode().splitlines()
    assert 'tvm_sched_waiting{model="m",version="1"} 3.0' in lines
    assert 'tvm_sched_executions_total{model="m",version="1"} 30.0' in lines
    metrics.change(queues[0], False)
    assert 'tvm_sched_waiting{model="m",version="1"} 2.0' in metrics.text().decode().splitlines()


async def test_a_client_that_goes_is_seen_if_the_model_was_loaded_anew_while_its_body_came(blocking):
    """The first queue runs short requests at once, which nobody watches; the new one does not."""
    quick, slow = blocking(), blocking()
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[0,1,2]}]}'  # in two parts
    queues = [queue_of(quick), queue_of(slow)]
    for _ in range(20):
        queues[0]._recent.note(1e-5)
    assert queues[0].runs_at_once
    models = OneModel(lambda: queues.pop(0))
    await models.load_all()
    application = InferenceServer(models, SharedMemory(), Metrics(), Access(), HttpLimits(), Recorder())
    gone = asyncio.Event()
    sent = []

    async def receive():
        if not sent:
            sent.append(body[:20])
            return {"type": "http.request", "body": body[:20], "more_body": True}
        if len(sent) == 1:
            await models.load("m")
            sent.append(body[20:])
            return {"type": "http.request", "body": body[20:], "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError("nobody is there")

    headers = [(b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": headers}
    asked = asyncio.create_task(application(scope, receive, send))
    await until(lambda: slow.module.batches)
    gone.set()
    await asyncio.wait_for(asked, 10)
    slow.module.go.set()
    await models.drain()
