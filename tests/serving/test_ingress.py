"""The ingress over stages of this process, without a cluster: requests that end their stage, and clients that go."""

import asyncio
import threading

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")

from tvm_sched.errors import BusyError, InputError, ServingError
from tvm_sched.pipeline.pipeline_artifact import Manifest, StageEntry, TensorEntry
from tvm_sched_cluster.serving import Deployment, StagePlacement, ingress
from tvm_sched_cluster.serving.served_generation import Generation
from tvm_sched_cluster.serving.stage_link import StageLink
from tvm_sched_cluster.serving.stage_server import StageServer
from tvm_sched_cluster.serving.tensor_channel import Message, connect, error_of

SECONDS = 20
POISON = 13
X, Y, Z = (TensorEntry(name, (3,), "float32", source) for name, source in (("x", None), ("y", 0), ("z", 1)))
MANIFEST = Manifest(
    "m", "t",
    tuple(StageEntry(f"cpu{s}", "cpu", "", "", "", (a,), (b,)) for s, (a, b) in enumerate(((X, Y), (Y, Z)))),
    (X,), (Z,), {},
)  # fmt: skip


class Stage:
    """A stage that adds 1; a poisoned value breaks its connections, as the end of its process does."""

    def __init__(self, number):
        self.number, self.ran, self.go, self.begun = number, [], threading.Event(), threading.Semaphore(0)
        self.go.set()
        self.server = StageServer(self.run, "127.0.0.1", "secret", 1 << 10)
        self.link = StageLink(self.find, 2, 1 << 10, 1000.0, None)
        self.count = self.seen = 0
        self.receive, self.link._receive = self.link._receive, self.see

    def __str__(self):
        return f"stage {self.number}"

    def see(self, channel, message, tensors):
        self.seen += message.kind == "begun"
        self.receive(channel, message, tensors)

    def run(self, x):
        self.begun.release()
        self.count += 1
        assert self.go.wait(SECONDS)
        self.ran.append(float(x[0]))
        if x[0] == POISON:
            while (
                self.seen < self.count
            ):  # long before the process of a real stage ends, the ingress knows what it runs
                pass
            ended = threading.Event()

            def end():
                for channel in list(self.server._channels):
                    channel._transport.close()
                ended.set()

            self.server._loop.call_soon_threadsafe(end)
            assert ended.wait(SECONDS)
        return [x + 1]

    async def find(self):
        return self.server.endpoint

    async def why(self):
        return ""


@pytest.fixture
def entry(monkeypatch):
    """Run a coroutine with an ingress and its two stages."""
    stages = [Stage(0), Stage(1)]
    monkeypatch.setattr(ingress, "_Stage", lambda _, number: stages[number])
    monkeypatch.setattr(ingress, "current_generation", lambda _: None)
    monkeypatch.setattr(ingress.ray.util, "get_node_ip_address", lambda: "127.0.0.1")

    def act(work, **options):
        deployment = Deployment("d", "a", (StagePlacement({"CPU": 1}),) * 2, **options)

        async def run():
            made = ingress.Ingress(Generation(deployment, MANIFEST, "secret"))
            await work(made, stages)
            for stage in stages:
                await stage.link.close()

        asyncio.run(asyncio.wait_for(run(), SECONDS))

    yield act
    for stage in stages:
        stage.go.set()
        stage.server.close()


def x(value):
    return {"x": np.full(3, value, np.float32)}


def test_values_pass_the_stages_and_wrong_inputs_none(entry):
    async def act(made, stages):
        results = await asyncio.gather(*(made.run(x(k)) for k in range(7)))
        assert [float(outputs[0][0]) for outputs in results] == [k + 2 for k in range(7)]
        with pytest.raises(InputError, match="the inputs x; found y"):
            await made.run({"y": np.zeros(3, np.float32)})
        assert len(stages[0].ran) == 7
        assert made.counts == {"answered": 7, "failed": 1, "refused": 0, "retried": 0}

    entry(act)


def test_a_request_that_ends_its_stage_twice_is_refused_alone(entry):
    async def act(made, stages):
        calls = [made.run(x(k)) for k in (1, POISON, 2, 3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results.pop(1), ServingError)
        assert [float(outputs[0][0]) for outputs in results] == [3, 4, 5]
        assert stages[0].ran.count(POISON) == 2
        assert stages[1].ran.count(POISON + 1) == 0

    entry(act, retries=9)


def test_the_requests_of_a_client_that_goes_are_cancelled(entry):
    async def act(made, stages):
        stages[0].go.clear()
        _, endpoint = await made.describe()
        gone = asyncio.Event()
        channel = await connect(endpoint, lambda *_: None, lambda _: gone.set(), 1 << 10)
        for k in range(4):
            channel.send(Message("run", k, names=("x",)), [x(k)["x"]])
        await asyncio.to_thread(stages[0].begun.acquire)
        while made.pipeline.in_flight < 4:
            await asyncio.sleep(0)
        channel.abort()
        await gone.wait()
        while made.requests:
            await asyncio.sleep(0)
        link = stages[0].link
        sign = link._sign
        link._channel.send(Message("beat"))  # its answer says that the stage has read what was sent before
        while link._sign == sign:
            await asyncio.sleep(0)
        stages[0].go.set()
        await made.pipeline.idle.wait()
        assert (stages[0].ran, stages[1].ran) == ([0], [])

    entry(act)


def test_errors_come_as_they_are_and_late_requests_name_their_stage(entry):
    async def act(made, stages):
        answers = asyncio.Queue()
        _, endpoint = await made.describe()
        channel = await connect(endpoint, lambda _, message, __: answers.put_nowait(message), lambda _: None, 1 << 10)
        stages[1].go.clear()
        channel.send(Message("run", 1, seconds=0.2, names=("x",)), [x(1)["x"]])
        error = error_of(await answers.get())
        assert str(error) == "stage 1 was not done in 0.2 s"
        channel.send(Message("run", 2, names=("x",)), [x(1)["x"]])
        channel.send(Message("run", 3, names=("x",)), [x(1)["x"]])
        assert isinstance(error_of(await answers.get()), BusyError)
        stages[1].go.set()
        assert (await answers.get()).kind == "done"
        channel.abort()

    entry(act, max_in_flight=2, max_waiting=0)
