"""Gateways over stages of this process, without a cluster: what they do when stages, the ingress or the generation go."""

import asyncio
import contextlib
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from small_pipeline import batches

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")

from tvm_sched_cluster.serving import gateway_models, ingress
from tvm_sched_cluster.serving.followed_deployment import FollowedDeployment
from tvm_sched_cluster.serving.gateway_models import DeployedPipeline, GatewayModels
from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_serve.failures import Busy, Refused
from tvm_sched_serve.metrics import Metrics

from .conftest import asked_over_http, gateway
from .stages_here import POISON, cluster, generation, x  # noqa: F401 - a fixture


class Entry:
    """An ingress that may end and be started again, and a gateway before it."""

    def __init__(self, cluster, **options):  # noqa: F811
        self.cluster, self.options = cluster, options
        self.first = generation(**options)
        self.stages = cluster.start(self.first)
        self.channels, self.changes = [], []

    async def start(self):
        self.ingress = ingress.Ingress(self.first)
        make = self.ingress._channel

        def channel():
            self.channels.append(make())
            return self.channels[-1]

        self.ingress._channel = channel
        self.endpoint = (await self.ingress.describe())[1]

    def end(self):
        """As the end of its process does."""
        self.endpoint, self.cluster.started_again = None, True
        self.ingress.server.close()
        if self.ingress.retiring is not None:
            self.ingress.retiring.cancel()
        for channel in self.channels:
            channel.abort()

    async def look_up(self):
        if self.endpoint is None:
            raise ServingError("not there")
        return self.endpoint

    async def gateway(self, change=None):
        self.pipeline = DeployedPipeline("d", None)
        self.pipeline.followed = FollowedDeployment("d", self.look_up)
        models = GatewayModels([self.pipeline], change or self.note)
        await models.load_all()
        return models

    def note(self, queue, opened):
        self.changes.append((queue.model.version, opened))

    async def close(self, models):
        await models.drain()
        await self.pipeline.followed.close()
        await self.ingress.entry.close()

    async def held(self, stage, asked):
        """Return a request when it is in a stage, which goes on as soon as it is let."""
        self.stages[stage].go.clear()
        request = asyncio.ensure_future(asked)
        await asyncio.to_thread(self.stages[stage].begun.acquire)
        return request

    def second(self):
        """A second generation, whose stages are there."""
        made = generation(2)
        self.cluster.start(made, addend=10)
        return made


@contextlib.asynccontextmanager
async def followed(cluster, **options):  # noqa: F811
    """An ingress, and the models of a gateway before it."""
    entry = Entry(cluster, **options)
    await entry.start()
    models = await entry.gateway()
    yield entry, models
    await entry.close(models)


def ask(models, value):
    return models.find("d").submit([x(value)["x"]])


async def test_values_pass_and_a_request_that_ends_its_stage_twice_is_refused_alone(cluster):  # noqa: F811
    async with followed(cluster) as (entry, models):
        calls = [ask(models, k) for k in (1, POISON, 2, 3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = results.pop(1)
        assert isinstance(refused, Refused)
        assert refused.status == 422
        assert [float(outputs[0][0]) for outputs in results] == [3, 4, 5]
        assert entry.stages[0].ran.count(POISON) == 2
        assert models.index()[0].state == "READY"


async def test_without_the_ingress_requests_go_on_and_the_next_one_is_found(cluster):  # noqa: F811
    async with followed(cluster) as (entry, models):
        await ask(models, 1)
        entry.end()
        await entry.pipeline.followed._channel.ended.wait()
        assert float((await ask(models, 2))[0][0]) == 4
        entry.stages[0].cut()  # and the stage is found where it was
        assert float((await ask(models, 3))[0][0]) == 5
        await entry.start()
        while not entry.ingress.followers:
            await asyncio.sleep(0.001)
        assert float((await ask(models, 4))[0][0]) == 6
        assert entry.changes == [("1", True)]


async def test_a_gateway_switches_with_a_rollout_which_waits_for_its_requests(cluster):  # noqa: F811
    async with followed(cluster) as (entry, models):
        old = await entry.held(1, ask(models, 1))
        second = entry.second()
        switch = asyncio.ensure_future(entry.ingress.switch(second))
        while models.find("d").model.version != "2":
            await asyncio.sleep(0.001)
        assert float((await ask(models, 1))[0][0]) == 21
        assert not switch.done()
        entry.stages[1].go.set()
        assert float((await old)[0][0]) == 3
        await switch
        assert entry.changes == [("1", True), ("2", True), ("1", False)]


async def test_a_switch_that_fails_is_tried_again_while_the_old_generation_serves(cluster, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr(gateway_models, "PAUSES", (0.0,))
    failures = iter([ServingError("no memory"), OSError("no descriptor")])
    served = []
    async with followed(cluster) as (entry, models):
        open_now = entry.pipeline.open

        async def fail_first(previous):
            for failure in failures:
                served.append(float((await ask(models, 1))[0][0]))
                raise failure
            return await open_now(previous)

        entry.pipeline.open = fail_first
        second = entry.second()
        await entry.ingress.switch(second)  # it waits for the gateway
        assert models.index()[-1].state == "READY"
        assert float((await ask(models, 1))[0][0]) == 21
    assert all(task.done() for task in models._switches.values())
    assert served == [3, 3]
    assert caplog.text.count("the switch to version 2 is tried again") == 2


async def test_old_stages_stay_until_the_gateway_that_needs_them_has_switched(cluster):  # noqa: F811
    """Also after the time limit of who rolled out, who is told which gateway it is, and with another ingress."""
    async with followed(cluster) as (entry, models):
        old = await entry.held(1, ask(models, 1))
        second = entry.second()
        me = f"the gateway on {socket.gethostname()}, process {os.getpid()} may have requests of them"
        assert await entry.ingress.switch(second, 0.01) == [me]
        assert float((await ask(models, 1))[0][0]) == 21
        entry.end()
        await entry.pipeline.followed._channel.ended.wait()
        entry.first = second  # what the next ingress finds stored
        await entry.start()
        again = "the ingress was started again, and gateways may not have found it yet"
        assert (await entry.ingress.switch(second, 0.0))[-1] == again
        assert cluster.ended == []
        while not entry.ingress.followers:
            await asyncio.sleep(0.001)
        entry.ingress.complete.set()  # as it is after RECONNECTION_SECONDS
        assert await entry.ingress.switch(second, 0.01) == [me]
        assert cluster.ended == []
        entry.stages[1].go.set()
        assert float((await old)[0][0]) == 3
        assert await entry.ingress.switch(second) == []
        assert cluster.ended[-1] == 2


async def test_an_ingress_that_is_started_again_finds_the_stages_of_a_gateway_that_cannot_switch(cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gateway_models, "PAUSES", (1e6,))
    async with followed(cluster) as (entry, models):
        await ask(models, 1)
        open_now, refused = entry.pipeline.open, asyncio.Event()

        async def refuse(previous):
            refused.set()
            raise ServingError("no memory")

        entry.pipeline.open = refuse
        entry.end()
        entry.first = entry.second()  # what the next ingress finds stored
        await entry.start()
        await refused.wait()
        entry.stages[0].cut()
        assert float((await ask(models, 1))[0][0]) == 3
        with pytest.raises(ServingError, match="generation 3 is not served; generation 2 is"):
            await entry.pipeline.followed.ask("find", "3 0 0")
        entry.pipeline.open = open_now
        entry.pipeline.changed()
        while models.find("d").model.version != "2":
            await asyncio.sleep(0.001)
        assert float((await ask(models, 1))[0][0]) == 21
        del cluster.stages[1]
        entry.ingress.complete.set()
        await entry.ingress.retiring
        with pytest.raises(ServingError, match="generation 1 is not served; generation 2 is"):
            await entry.pipeline.followed.ask("find", "1 0 0")


async def test_an_ingress_that_is_started_again_ends_earlier_generations_though_nobody_asks_it(cluster):  # noqa: F811
    entry = Entry(cluster)
    entry.first = generation(2)
    cluster.start(entry.first)
    cluster.started_again = True
    await entry.start()
    await asyncio.wait([entry.ingress.retiring], timeout=0.01)
    assert cluster.ended == []  # a gateway may still find it
    entry.ingress.complete.set()
    await entry.ingress.retiring
    assert cluster.ended == [2]
    assert await entry.ingress.switch(entry.first) == []
    await entry.ingress.entry.close()


async def test_stages_that_nobody_hands_over_end_and_those_that_arrive_stay(cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(ingress, "ABANDONED_SECONDS", 0.0)
    entry = Entry(cluster)
    await entry.start()
    second, arrived = entry.second(), asyncio.Event()
    directory = cluster.directory(second)
    monkeypatch.setattr(ingress, "RayDirectory", lambda _: directory)

    async def ping(stage, replica):
        await arrived.wait()

    directory.ping = ping
    switch = asyncio.ensure_future(entry.ingress.switch(second))
    while not entry.ingress.arriving:
        await asyncio.sleep(0)
    cluster.abandoned = {2, 3}  # the command that hands over the second has just ended
    while len(cluster.ended_alone) < 3:
        await asyncio.sleep(0.001)
    assert set(cluster.ended_alone) == {3}
    arrived.set()
    assert await switch == []
    await entry.ingress.entry.close()


async def test_a_switch_that_fails_leaves_the_stages_of_another_alone(cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(ingress, "ABANDONED_SECONDS", 0.0)
    entry = Entry(cluster)
    await entry.start()
    generations = [generation(number) for number in (2, 3)]
    for each in generations:
        cluster.start(each)
    directories = {each.number: cluster.directory(each) for each in generations}
    arrived, lost = asyncio.Event(), asyncio.Event()

    async def arrive(stage, replica):
        await arrived.wait()

    async def lose(stage, replica):
        await lost.wait()
        raise ServingError("it has gone")

    directories[2].ping, directories[3].ping = arrive, lose
    monkeypatch.setattr(ingress, "RayDirectory", lambda of: directories[of.number])
    second, third = (asyncio.ensure_future(entry.ingress.switch(each)) for each in generations)
    while len(entry.ingress.arriving) < 2:
        await asyncio.sleep(0)
    lost.set()
    with pytest.raises(ServingError, match="it has gone"):
        await third
    cluster.abandoned = {2, 3}
    while len(cluster.ended_alone) < 3:
        await asyncio.sleep(0.001)
    assert set(cluster.ended_alone) == {3}
    arrived.set()
    assert await second == []
    await entry.ingress.entry.close()


async def test_a_slow_switch_takes_back_no_later_one(cluster, monkeypatch):  # noqa: F811
    entry = Entry(cluster)
    await entry.start()
    second, third = (generation(number) for number in (2, 3))
    for each in (second, third):
        cluster.start(each)
    slow, arrived = cluster.directory(second), asyncio.Event()

    async def arrive(stage, replica):
        await arrived.wait()

    slow.ping = arrive
    monkeypatch.setattr(ingress, "RayDirectory", lambda of: slow if of.number == 2 else cluster.directory(of))
    switch = asyncio.ensure_future(entry.ingress.switch(second))
    while not entry.ingress.arriving:
        await asyncio.sleep(0)
    assert await entry.ingress.switch(third) == []
    arrived.set()
    assert await switch == []
    assert entry.ingress.generation.number == 3
    await entry.ingress.entry.close()


async def test_a_look_for_abandoned_stages_that_fails_is_not_the_last(cluster, monkeypatch):  # noqa: F811
    """Another version of Ray may list jobs with other fields."""
    monkeypatch.setattr(ingress, "ABANDONED_SECONDS", 0.0)
    looks = []

    def look(name, number):
        looks.append(number)
        if len(looks) < 3:
            raise KeyError("JobID")
        return {7}

    monkeypatch.setattr(ingress, "abandoned_generations", look)
    entry = Entry(cluster)
    await entry.start()
    while not cluster.ended_alone and not entry.ingress.caretaker.done():
        await asyncio.sleep(0.001)
    assert cluster.ended_alone[:1] == [7]
    await entry.ingress.entry.close()


async def test_stages_that_are_not_served_are_refused_without_asking_ray_each_time(cluster, monkeypatch):  # noqa: F811
    entry = Entry(cluster)
    await entry.start()
    cluster.start(generation(5))
    assert await entry.ingress.switch(generation(5)) == []
    asked = []

    def lost(of):
        asked.append(of.number)
        raise ValueError("no such actor")

    monkeypatch.setattr(ingress, "RayDirectory", lost)

    def refused(number):
        with pytest.raises(ServingError, match=f"generation {number} is not served; generation 5 is"):
            entry.ingress._directory(number)

    for number in (6, 0, -1, 3, 3, 4, 3):  # a rollout is still starting the sixth
        refused(number)
    assert asked == [3, 4]
    entry.ingress.missing[3] = 0.0  # the time is over
    refused(3)
    assert asked == [3, 4, 3]
    await entry.ingress.entry.close()


async def test_a_switch_that_waits_for_a_client_says_so(cluster):  # noqa: F811
    entry = Entry(cluster)
    await entry.start()
    old = await entry.held(1, entry.ingress.run(x(1)))
    second = entry.second()
    assert await entry.ingress.switch(second, 0.0) == ["clients in Python have requests of them"]
    entry.stages[1].go.set()
    assert float((await old)[0][0]) == 3
    assert await entry.ingress.switch(second) == []
    assert entry.ingress._reasons(2) == ["Ray is ending them"]
    await entry.ingress.entry.close()


async def test_what_a_gateway_says_of_an_earlier_switch_takes_nothing_back(cluster):  # noqa: F811
    async with followed(cluster) as (entry, _):
        cluster.start(generation(2))
        assert await entry.ingress.switch(generation(2)) == []
        (follower,) = entry.ingress.followers.values()
        await entry.ingress._switched(entry.channels[-1], 1)
        assert follower.generation == 2


async def test_a_switch_that_fails_gives_way_to_the_next_generation_and_to_the_end(cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gateway_models, "PAUSES", (1e6,))
    async with followed(cluster) as (entry, models):
        open_now, asked = entry.pipeline.open, []

        async def refuse_the_second(previous):
            asked.append(entry.pipeline.version)
            if entry.pipeline.version != "3":
                raise ServingError("no memory")
            return await open_now(previous)

        entry.pipeline.open = refuse_the_second
        for number in (2, 3):
            cluster.start(generation(number), addend=10 * number)
            switch = asyncio.ensure_future(entry.ingress.switch(generation(number)))
            while len(asked) < number - 1:
                await asyncio.sleep(0)
        await switch
        assert asked == ["2", "3"]  # the second is not tried again: its pause would be longer than this test
        assert float((await ask(models, 1))[0][0]) == 61
        entry.pipeline.changed()
        while len(asked) < 3:
            await asyncio.sleep(0)
        last = models._switches["d"]
        await models.drain()
        entry.pipeline.changed()  # a gateway that drains switches no more
        assert models._switches["d"] is last


async def test_without_places_to_wait_a_request_is_answered_or_refused(cluster):  # noqa: F811
    async with followed(cluster, max_in_flight=1, max_waiting=0) as (entry, models):
        for k in range(3):
            assert float((await ask(models, k))[0][0]) == k + 2
        first = await entry.held(0, ask(models, 1))
        with pytest.raises(Busy, match="all 1 places are taken, and no request may wait"):
            await ask(models, 3)
        entry.stages[0].go.set()
        assert float((await first)[0][0]) == 3


async def test_metrics_count_requests_that_were_sent_again(cluster):  # noqa: F811
    entry = Entry(cluster)
    await entry.start()
    metrics = Metrics()
    models = await entry.gateway(metrics.change)
    counts = []
    for value in (1, POISON):
        await asyncio.gather(ask(models, value), return_exceptions=True)
        counts.append(models.find("d").retried)
        assert f'tvm_sched_retried_total{{model="d",version="1"}} {counts[-1]:.1f}' in metrics.text().decode()
    assert counts == [0, 1]
    await entry.close(models)


async def test_a_request_whose_old_stages_are_lost_goes_to_the_new_ones(cluster):  # noqa: F811
    async with followed(cluster) as (entry, models):
        old = await entry.held(0, ask(models, 1))
        second = entry.second()
        switch = asyncio.ensure_future(entry.ingress.switch(second))
        while models.find("d").model.version != "2":
            await asyncio.sleep(0.001)
        entry.ingress.directories[1].there = False
        entry.stages[0].cut()
        assert float((await old)[0][0]) == 21
        entry.stages[0].go.set()
        await switch


async def test_more_requests_than_places_are_refused_and_late_ones_are_not_computed(cluster):  # noqa: F811
    async with followed(cluster, max_in_flight=1, max_waiting=1) as (entry, models):
        first = await entry.held(0, ask(models, 1))
        second = asyncio.ensure_future(ask(models, 2))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="1 requests wait"):
            await ask(models, 3)
        second.cancel()
        await asyncio.wait([second])
        entry.stages[0].go.set()
        assert float((await first)[0][0]) == 3
        assert float((await ask(models, 4))[0][0]) == 6
        assert entry.stages[0].ran == [1, 4]


async def test_an_unknown_deployment_is_told(cluster):  # noqa: F811
    async def look_up():
        raise InputError("there is no deployment 'd'; there are none")

    pipeline = DeployedPipeline("d", None)
    pipeline.followed = FollowedDeployment("d", look_up)
    with pytest.raises(InputError, match="there is no deployment 'd'"):
        await GatewayModels([pipeline], lambda queue, opened: None).load_all()
    with pytest.raises(InputError, match="two pipelines have the name 'd'"):
        GatewayModels([DeployedPipeline("d", None)] * 2, lambda queue, opened: None)


async def test_values_are_not_mixed_between_requests(cluster):  # noqa: F811
    async with followed(cluster) as (_, models):
        watcher = SimpleNamespace(timelines=True, runs=[])
        watcher.run = watcher.runs.append
        models.find("d").recorder.add(watcher)
        models.record_timelines(True)
        results = await asyncio.gather(*(ask(models, k) for k in range(20, 60)))
        assert [(record.model, record.version) for record in watcher.runs] == [("d", "1")] * 40
        np.testing.assert_array_equal(
            [float(outputs[0][0]) for outputs in results], np.arange(20, 60, dtype=np.float32) + 2
        )


def test_a_deployment_file_is_served_by_one_process(compiled, artifact, tmp_path):
    grpc = pytest.importorskip("tritonclient.grpc")
    plan = tmp_path / "layers.toml"
    plan.write_text(
        f'''format = "tvm_sched.deployment"\nversion = 1\nname = "layers"\nartifact = "{artifact}"\nreplicas = 2
stages = [{{ resources = {{ dev = 1 }} }}, {{ resources = {{ dev = 1 }} }}, {{ resources = {{ dev = 1 }}, replicas = 1 }}]
'''
    )
    (batch,) = batches(1)
    expected = compiled.run([batch])[0].value()
    with gateway(plan) as (over_http, over_grpc, _):
        for found, value in zip(asked_over_http(over_http, batch), expected, strict=True):
            np.testing.assert_array_equal(found, value)
        with grpc.InferenceServerClient(over_grpc) as client:
            given = grpc.InferInput("x", batch.shape, "FP32")
            given.set_data_from_numpy(batch)
            answer = client.infer("layers", [given])
            for output, value in zip(answer.get_response().outputs, expected, strict=True):
                np.testing.assert_array_equal(answer.as_numpy(output.name), value)
