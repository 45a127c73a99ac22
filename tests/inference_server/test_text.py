"""Generated text over HTTP: OpenAI's client and server-sent events against the artifact's own `Generator`."""

import asyncio
import http.client
import json
import queue
from types import SimpleNamespace

import numpy as np
import pytest

from tvm_sched_language import Generator, Sampling
from tvm_sched_runtime.errors import InputError
from tvm_sched_serve.execution_queue import QueueOptions
from tvm_sched_serve.failures import Busy, Failed, Late, RequestError
from tvm_sched_serve.served_text import ServedText, TextPrompt
from tvm_sched_serve.text_queue import StopTexts, TextOptions, TextQueue

pytest.importorskip("openai")
pytest.importorskip("tritonclient")
import openai
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MESSAGES = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"}]
CHAT = "<s><system>Short.\n<user>Hi\n<assistant>"
PROMPT = np.random.default_rng(3).integers(3, 259, 20).tolist()


@pytest.fixture(scope="module")
def language_server(start, language_artifact):
    return start(language_artifact, "--queue", "4", "--admin-port", "0", "--receive-timeout", "20")


@pytest.fixture(scope="module")
def client(language_server):
    return openai.OpenAI(base_url=f"http://{language_server.http}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def generator(language_artifact):
    return Generator(language_artifact)


def own(generator, prompt, count, special=True, **sampling):
    tokens = generator.text.encode(prompt, special=special) if isinstance(prompt, str) else prompt
    (text,) = generator.generate([tokens], max_tokens=count, sampling=Sampling(**sampling))
    return text


def post(server, path, document, headers=()):
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    connection.request("POST", path, json.dumps(document), dict(headers))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.getheader("content-type"), content


def events(content):
    parts = content.decode().split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_models(client, language_server):
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(model.id).id == "model"
    with pytest.raises(openai.NotFoundError, match="no language model 'other'"):
        client.models.retrieve("other")
    connection = http.client.HTTPConnection(*language_server.address, timeout=60)
    connection.request("GET", "/v2/models/model")
    described = json.loads(connection.getresponse().read())
    assert described["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [1]}]


def text_input(prompt):
    entry = triton.InferInput("text_input", [1], "BYTES")
    entry.set_data_from_numpy(np.array([prompt.encode()], np.object_))
    return [entry]


def test_grpc_gives_a_text_as_a_whole_or_piece_by_piece(language_server, generator):
    expected = own(generator, "Once", 9).text
    wanted = {"max_tokens": 9, "temperature": 0.0}
    answers = queue.Queue()
    with triton.InferenceServerClient(language_server.grpc) as opened:
        whole = opened.infer("model", text_input("Once"), parameters=wanted, request_id="seven")
        assert whole.as_numpy("text_output")[0].decode() == expected
        opened.start_stream(lambda result, error: answers.put((result, error)))
        opened.async_stream_infer("model", text_input("Once"), parameters=wanted, request_id="eight")
        pieces, last = [], False
        while not last:
            result, error = answers.get(timeout=60)
            assert error is None
            pieces.append(result.as_numpy("text_output")[0].decode())
            response = result.get_response()
            assert response.id == "eight"
            last = response.parameters["triton_final_response"].bool_param
        opened.stop_stream()
    assert "".join(pieces) == expected
    assert len(pieces) > 1


def test_wrong_texts_over_grpc_are_told(language_server):
    numbers = triton.InferInput("x", [1], "FP32")
    numbers.set_data_from_numpy(np.zeros(1, np.float32))
    two = triton.InferInput("text_input", [2], "BYTES")
    two.set_data_from_numpy(np.array([b"a", b"b"], np.object_))
    binary = triton.InferInput("text_input", [1], "BYTES")
    binary.set_data_from_numpy(np.array([b"\xff"], np.object_))
    with triton.InferenceServerClient(language_server.grpc) as opened:
        for inputs, parameters, message in (
            ([numbers], {}, "expected text_input"),
            ([two], {}, "BYTES"),
            ([binary], {}, "not UTF-8"),
            (text_input("a"), {"max_tokens": 0}, "1 or more"),
            (text_input("a"), {"temperature": "warm"}, "float"),
        ):
            with pytest.raises(InferenceServerException, match=message):
                opened.infer("model", inputs, parameters=parameters)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_what_the_generator_makes_of_the_template(client, generator, stream):
    expected = own(generator, CHAT, 12, special=False)
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = client.chat.completions.create(
        model="model", messages=MESSAGES, max_completion_tokens=12, temperature=0, stream=stream, **options
    )
    if stream:
        chunks = list(answer)
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        reason, usage = chunks[-2].choices[0].finish_reason, chunks[-1].usage
    else:
        assert answer.choices[0].message.role == "assistant"
        text, reason, usage = answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage
    assert text == expected.text
    assert reason == ("stop" if expected.finished == "stop" else "length")
    assert (usage.prompt_tokens, usage.completion_tokens) == (expected.prompt_tokens, len(expected.tokens))


def test_several_prompts_and_choices_share_the_steps(client, generator):
    prompts = [PROMPT[:7], PROMPT[3:20], PROMPT[:1]]
    answer = client.completions.create(
        model="model", prompt=prompts, max_tokens=9, temperature=0, n=2, extra_body={"return_token_ids": True}
    )
    expected = [own(generator, prompt, 9).tokens for prompt in prompts for _ in range(2)]
    assert [choice.token_ids for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage.prompt_tokens == 25
    streamed = client.completions.create(model="model", prompt=prompts[:2], max_tokens=9, temperature=0, stream=True)
    texts = ["", ""]
    for chunk in streamed:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [own(generator, prompt, 9).text for prompt in prompts[:2]]


def test_a_seed_repeats(client, generator):
    def sampled(seed):
        answer = client.completions.create(
            model="model", prompt="abc", max_tokens=8, temperature=1, top_p=0.9, seed=seed
        )
        return answer.choices[0].text

    assert sampled(4) == own(generator, "abc", 8, temperature=1.0, top_p=0.9, seed=4).text


def test_a_stop_text_ends_it(client, language_server, generator):
    whole = own(generator, "abc", 16).text
    stop = next(whole[k : k + 2] for k in range(2, len(whole) - 1) if whole.index(whole[k : k + 2]) == k)
    answer = client.completions.create(
        model="model", prompt="abc", max_tokens=16, temperature=0, stop=[stop, "never so"]
    )
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    parameters = {"max_tokens": 16, "temperature": 0, "stop": [stop], "details": True}
    document = {"text_input": "abc", "parameters": parameters}
    status, kind, content = post(language_server, "/v2/models/model/generate_stream", document)
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    pieces = events(content)
    assert "".join(piece["text_output"] for piece in pieces) == whole[: whole.index(stop)]
    assert pieces[-1]["details"]["finish_reason"] == "stop_sequence"
    status, _, content = post(language_server, "/v2/models/model/versions/1/generate", document)
    assert json.loads(content)["text_output"] == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "no model 'other'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"prompt": [259]}, "0 to 258 are known"),
        ({"prompt": [1] * 64}, "the artifact was compiled for a context of 64"),
        ({"prompt": []}, "0 prompts"),
        ({"prompt": [1, "a"]}, "mixes"),
        ({"n": 129}, "1 to 128 texts"),
        ({"n": 0}, "1 to 128 texts"),
        ({"logprobs": 0}, "'logprobs' is not available"),
        ({"echo": True}, "'echo' is not available"),
        ({"stop": ["", "b"]}, "'stop'"),
        ({"prompt": {"a": 1}}, "prompt"),
    ],
)
def test_wrong_requests_are_told(language_server, change, message):
    document = {"model": "model", "prompt": "abc", "max_tokens": 2} | change
    status, _, content = post(language_server, "/v1/completions", document | {"stream": True})
    assert status == (404 if "model" in change else 400)
    assert message in json.loads(content)["error"]["message"]


def test_other_paths_tell_what_they_lack(language_server, server):
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    status, _, content = post(language_server, "/v2/models/model/infer", {"inputs": [tensor]})
    assert status == 400
    assert "generates text" in json.loads(content)["error"]
    status, _, content = post(server, "/v2/models/small/generate", {"text_input": "a"})
    assert status == 400
    assert "generates no text" in json.loads(content)["error"]
    document = {"model": "model", "messages": [{"role": "tool", "content": "x"}]}
    status, _, content = post(language_server, "/v1/chat/completions", document)
    assert status == 400
    assert "refuses the messages: no tools" in json.loads(content)["error"]["message"]


def test_a_client_that_goes_frees_its_place(language_server, client):
    def running():
        connection = http.client.HTTPConnection(*language_server.address, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith(("tvm_sched_running{", "tvm_sched_waiting{"))
        )

    for _ in range(6):  # more than there are places
        with client.completions.create(
            model="model", prompt="abc", max_tokens=50, temperature=0, stream=True
        ) as stream:
            next(iter(stream))
    assert any(running() == 0 for _ in range(2000))
    assert client.completions.create(model="model", prompt="abc", max_tokens=3).usage.completion_tokens == 3


class SteppedGenerator:
    """In place of a model: each step gives each of two texts a letter; `places` is the number of texts at once."""

    def __init__(self):
        self.places, self.context, self.text = 2, 1000, None
        self.sequences, self.failing, self.joined = [], False, []

    def start(self, prompt, max_tokens, sampling):
        if prompt == "refused":
            raise InputError("it is refused")
        sequence = SimpleNamespace(prompt=list(prompt), count=0, max_tokens=max_tokens)
        self.sequences.append(sequence)
        return sequence

    def cancel(self, sequence):
        if sequence in self.sequences:
            self.sequences.remove(sequence)

    def step(self):
        if self.failing:
            raise RuntimeError("at /a/secret/place")
        running = self.sequences[: self.places]
        self.joined.append(len(running))
        tokens = []
        for sequence in running:
            sequence.count += 1
            end = "length" if sequence.count == sequence.max_tokens else ""
            tokens.append(SimpleNamespace(sequence=sequence, id=sequence.count, text="a", finished=end))
        return tokens


def texts_of(act, **options):
    async def run():
        generator = SteppedGenerator()
        queue = TextQueue(ServedText("m", "1", generator), QueueOptions(**options))
        await asyncio.wait_for(act(queue, generator), 20)
        await asyncio.wait_for(queue.drain(), 20)
        assert not generator.sequences

    asyncio.run(run())


def begin(queue, *prompts, count=3):
    return queue.start([TextPrompt(text=each) for each in prompts], [TextOptions(Sampling(), count)] * len(prompts))


async def collect(queue, texts):
    return [(number, piece.token) async for number, piece in queue.pieces(texts)]


def test_texts_join_while_others_are_generated():
    async def act(queue, generator):
        first = await begin(queue, "a", count=200)
        second = await begin(queue, "b", count=2)
        assert await collect(queue, second) == [(0, 1), (0, 2)]
        assert 2 in generator.joined
        queue.leave(first)
        assert queue.running == 0

    texts_of(act)


def test_a_full_queue_refuses_and_a_text_that_leaves_gives_back_its_place():
    async def act(queue, generator):
        texts = await begin(queue, "a", "b", "c", count=900)
        assert (queue.running, queue.waiting) == (2, 1)
        with pytest.raises(Busy, match="has 3 of the 3 texts that it takes at once, 1 of them wait") as refused:
            await begin(queue, "d")
        assert refused.value.retry_after >= 1
        with pytest.raises(RequestError, match="is for 4 texts; the model takes at most 3 at once") as never:
            await begin(queue, "d", "e", "f", "g")
        assert never.value.status == 400
        queue.finish(texts, RequestError("the client went"))
        assert await collect(queue, await begin(queue, "d", count=1)) == [(0, 1)]
        assert queue.statistics.failures == 1

    texts_of(act, places=1)


def test_a_refused_prompt_begins_none_of_its_request():
    async def act(queue, generator):
        with pytest.raises(RequestError, match="it is refused"):
            await begin(queue, "a", "refused", count=900)
        assert queue.running == 0

    texts_of(act)


def test_a_failed_step_fails_its_texts_and_the_next_ones_are_generated():
    async def act(queue, generator):
        generator.failing = True
        with pytest.raises(Failed) as told:
            await collect(queue, await begin(queue, "a"))
        assert "secret" not in str(told.value)
        generator.failing = False
        assert len(await collect(queue, await begin(queue, "a"))) == 3

    texts_of(act)


def test_a_token_that_cannot_be_read_fails_its_texts_and_the_next_ones_are_generated():
    async def act(queue, generator):
        step = generator.step
        generator.step = lambda: [SimpleNamespace(sequence=each.sequence, text=None, finished="") for each in step()]
        with pytest.raises(Failed, match="a step failed"):
            await collect(queue, await begin(queue, "a"))
        generator.step = step
        assert len(await collect(queue, await begin(queue, "a"))) == 3

    texts_of(act)


def test_a_token_that_does_not_come_in_time():
    async def act(queue, generator):
        import threading

        go = threading.Event()
        step = generator.step
        generator.step = lambda: go.wait(20) and step()
        texts = await begin(queue, "a")
        with pytest.raises(Late):
            await collect(queue, texts)
        queue.leave(texts)
        go.set()

    texts_of(act, timeout=0.01)


@pytest.mark.parametrize("stops", [["ab"], ["abab", "ba"], ["x", "aab"], ["c"]])
def test_stop_texts_are_found_however_the_text_is_cut(stops):
    whole = "aabxbabac"
    expected = whole[: min((whole.find(stop) for stop in stops if stop in whole), default=len(whole))]
    for cuts in range(1 << (len(whole) - 1)):
        pieces, begin_of = [], 0
        for k in range(1, len(whole)):
            if cuts >> (k - 1) & 1:
                pieces.append(whole[begin_of:k])
                begin_of = k
        pieces.append(whole[begin_of:])
        filter_, shown = StopTexts(stops), ""
        for k, piece in enumerate(pieces):
            text, found = filter_.add(piece, k == len(pieces) - 1)
            shown += text
            if found:
                break
        assert shown == expected
