"""An ingress and its two stages in this process, for tests that need no cluster."""

import asyncio
import threading

import numpy as np
import pytest

from tvm_sched_cluster.serving import Deployment, StagePlacement
from tvm_sched_cluster.serving.deployment import Generation
from tvm_sched_cluster.serving.stage_link import StageLink
from tvm_sched_cluster.serving.stage_server import StageServer
from tvm_sched_runtime.errors import ServingError
from tvm_sched_runtime.pipeline.pipeline_artifact import Manifest, StageEntry, TensorEntry

SECONDS = 20
POISON = 13
X, Y, Z = (TensorEntry(name, (3,), "float32", source) for name, source in (("x", None), ("y", 0), ("z", 1)))
MANIFEST = Manifest(
    "m", "t",
    tuple(StageEntry(f"cpu{s}", "cpu", "", "", "", (a,), (b,)) for s, (a, b) in enumerate(((X, Y), (Y, Z)))),
    (X,), (Z,), {},
)  # fmt: skip


class Stage:
    """A stage that adds a number; a poisoned value breaks its connections, as the end of its process does."""

    def __init__(self, generation, number, addend=1):
        self.addend, self.ran, self.go, self.begun = addend, [], threading.Event(), threading.Semaphore(0)
        self.go.set()
        self.token = generation.stage_token(number)
        self.count, self.seen, self.changed = 0, 0, threading.Condition()
        self.start()

    def start(self):
        self.server = StageServer(self.compute, "127.0.0.1", self.token, 1 << 10)
        lost = self.server._lost

        def note(channel):
            lost(channel)
            with self.changed:
                self.changed.notify_all()

        self.server._lost = note

    def compute(self, x):
        self.begun.release()
        self.count += 1
        assert self.go.wait(SECONDS)
        self.ran.append(float(x[0]))
        if x[0] == POISON:
            with self.changed:  # long before a real process ends, the other end knows what it runs
                assert self.changed.wait_for(lambda: self.seen == self.count, SECONDS)
            self.cut()
        return [x + self.addend]

    def cut(self):
        """Break all connections; afterwards the stage has no request of them that it would begin."""
        cut = list(self.server._channels)
        for channel in cut:
            self.server._loop.call_soon_threadsafe(channel._transport.close)
        with self.changed:
            assert self.changed.wait_for(lambda: self.server._channels.isdisjoint(cut), SECONDS)

    def saw(self):
        with self.changed:
            self.seen += 1
            self.changed.notify_all()

    def close(self):
        self.go.set()
        self.server.close()


class Cluster:
    """What Ray tells, of stages of this process."""

    def __init__(self):
        self.stages, self.ended, self.started_again = {}, [], False
        self.abandoned, self.ended_alone = set(), []

    def start(self, generation, addend=1):
        self.stages[generation.number] = [Stage(generation, number, addend) for number in (0, 1)]
        return self.stages[generation.number]

    def directory(self, generation):
        return Directory(generation, self.stages[generation.number])


class Directory:
    def __init__(self, generation, stages):
        self.generation, self.stages, self.there = generation, stages, True

    async def ping(self, stage, replica):
        return {}

    async def find(self, stage, replica):
        if not self.there:
            raise ServingError("not there")
        return self.stages[stage].server.endpoint

    async def end(self, stage, replica, endpoint):
        raise AssertionError

    async def why(self, stage):
        return ""


def generation(number=1, **options):
    return Generation(Deployment("d", "a", (StagePlacement({"CPU": 1}),) * 2, **options), MANIFEST, "secret", number)


def x(value):
    return {"x": np.full(3, value, np.float32)}


@pytest.fixture
def cluster(monkeypatch):
    """Stages, whose addresses an `Ingress` of this process gets from here and not from Ray."""
    from tvm_sched_cluster.serving import ingress

    made = Cluster()
    receive = StageLink._receive

    def see(link, channel, message, tensors):
        if message.kind == "begun":
            port = channel._transport.get_extra_info("peername")[1]
            for stages in made.stages.values():
                for stage in stages:
                    if stage.server.endpoint.port == port:
                        stage.saw()
        receive(link, channel, message, tensors)

    monkeypatch.setattr(StageLink, "_receive", see)
    monkeypatch.setattr(ingress, "RayDirectory", made.directory)
    monkeypatch.setattr(ingress, "current_generation", lambda _: None)
    monkeypatch.setattr(ingress, "started_again", lambda: made.started_again)
    monkeypatch.setattr(ingress, "store_generation", lambda _: None)
    monkeypatch.setattr(ingress, "end_generations_before", lambda name, number: made.ended.append(number))
    monkeypatch.setattr(ingress, "abandoned_generations", lambda name, number: made.abandoned)
    monkeypatch.setattr(ingress, "end_generation", lambda name, number: made.ended_alone.append(number))
    monkeypatch.setattr(ingress.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    yield made
    for stages in made.stages.values():
        for stage in stages:
            stage.close()


def run(work):
    asyncio.run(asyncio.wait_for(work, SECONDS))
