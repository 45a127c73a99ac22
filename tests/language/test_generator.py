"""`Generator`: pieces of prompts, several sequences at once, cancelling, ends, and text."""

import numpy as np
import pytest

from tvm_sched_language import Generator, Sampling
from tvm_sched_language.command import Request, generate_texts
from tvm_sched_language.text import Decoded
from tvm_sched_runtime.errors import ExecutionError, InputError

PROMPT = np.random.default_rng(3).integers(3, 259, 45).tolist()


def greedy(generator, prompt, count=12, **options):
    (text,) = generator.generate([prompt], max_tokens=count, sampling=Sampling(), stop=(), **options)
    return text.tokens


def step_by_step(generator, prompt, count):
    """Tokens by the plan for one row alone, a token of the prompt at a time."""
    tokens = []
    for position in range(len(prompt) + count - 1):
        token = (prompt + tokens)[position]
        logits = generator.module.run(*(np.array([n], np.int32) for n in (token, position, 0, 0)))[0]
        if position >= len(prompt) - 1:
            tokens.append(int(logits[0].argmax()))
    return tokens


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 37, 45])
def test_a_prompt_in_pieces_gives_what_its_tokens_give_one_by_one(generator, length):
    assert greedy(generator, PROMPT[:length]) == step_by_step(generator, PROMPT[:length], 12)


def test_a_text_whose_logits_are_no_numbers_ends_alone(generator, monkeypatch):
    """The other text of the same runs goes on."""
    alone, run, steps = greedy(generator, PROMPT[:1]), generator._run, []

    def spoiled(job):
        logits = run(job).copy()
        if job.gives_tokens and len(job.sequences) == 2:
            steps.append(job)
            logits[1, 7] = np.nan if len(steps) == 3 else logits[1, 7]
        return logits

    monkeypatch.setattr(generator, "_run", spoiled)
    right, wrong = generator.generate([PROMPT[:1], PROMPT[:1]], max_tokens=12, sampling=Sampling(), stop=())
    assert (right.tokens, right.finished) == (alone, "length")
    assert (wrong.tokens, wrong.finished) == (alone[: len(wrong.tokens)], "invalid")
    request = Request(["1"], max_tokens=4, tokens=True)
    monkeypatch.setattr(generator, "_run", lambda job: run(job) * np.float32("nan"))
    with pytest.raises(ExecutionError, match="text 1: after 0 tokens the logits are infinite or not numbers"):
        generate_texts(generator, request, None)


def test_sequences_at_once_are_as_each_alone(generator):
    prompts = [PROMPT[:7], PROMPT[5:30], PROMPT[:1], PROMPT[10:28]]
    alone = [greedy(generator, prompt) for prompt in prompts]
    together = generator.generate(prompts, max_tokens=12, sampling=Sampling(), stop=())
    assert [text.tokens for text in together] == alone
    assert all(text.finished == "length" and 0 < text.prompt_seconds <= text.seconds for text in together)


def test_a_seed_repeats_and_does_not_depend_on_the_others(generator):
    sampling = Sampling(1.0, top_p=0.9, seed=4)
    first, second = generator.generate([PROMPT[:7], PROMPT[:9]], max_tokens=10, sampling=sampling, stop=())
    (alone,) = generator.generate([PROMPT[:9]], max_tokens=10, sampling=sampling, stop=())
    assert alone.tokens == second.tokens != first.tokens


def test_a_text_goes_on_after_a_sleep(generator):
    expected = greedy(generator, PROMPT[:7])
    sequence = generator.start(PROMPT[:7], max_tokens=12, sampling=Sampling(), stop=())
    while len(sequence.tokens) < 5:
        generator.step()
    generator.module.sleep()
    generator.module.wake()
    while not sequence.finished:
        generator.step()
    assert sequence.tokens == expected


def test_a_stream_that_is_closed_frees_its_place(generator):
    for _ in range(3):
        stream = generator.stream(PROMPT[:20], max_tokens=30, sampling=Sampling(), stop=())
        seen = [next(stream).id, next(stream).id]
        stream.close()
        assert seen == greedy(generator, PROMPT[:20], 2)
    assert sorted(generator.free_places) == [0, 1]


def test_an_interrupt_leaves_a_generator_that_goes_on(generator, monkeypatch):
    expected = greedy(generator, PROMPT[:20])
    run, calls = type(generator.module).run, []

    def interrupted(module, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(module, *arguments)

    monkeypatch.setattr(type(generator.module), "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        greedy(generator, PROMPT[:20])
    assert greedy(generator, PROMPT[:20]) == expected


def test_ends(generator):
    tokens = greedy(generator, PROMPT[:5])
    (stopped,) = generator.generate([PROMPT[:5]], sampling=Sampling(), stop=(tokens[3],))
    assert stopped.finished == "stop"
    assert stopped.tokens == tokens[: tokens.index(tokens[3]) + 1]
    (full,) = generator.generate([PROMPT], max_tokens=1000, sampling=Sampling(), stop=())
    assert full.finished == "context"
    assert len(full.tokens) == 64 - 45


def test_a_text_is_encoded_and_decoded(generator):
    (text,) = generator.generate(["Grüße"], max_tokens=8, sampling=Sampling(), stop=())
    assert text.prompt_tokens == len("Grüße".encode())
    assert text.text == generator.text.decode(text.tokens)
    streamed = [token.text for token in generator.stream("Grüße", max_tokens=8, sampling=Sampling(), stop=())]
    assert "".join(streamed) == text.text


def test_a_character_of_several_tokens_comes_when_it_is_complete(generator):
    decoded = Decoded(generator.text)
    pieces = [decoded.add(token) for token in generator.text.encode("a€ß")]
    assert pieces == ["a", "", "", "€", "", "ß"]
    assert decoded.finish() == ""


def test_a_message_goes_through_the_chat_template(generator):
    assert generator.text.chat([{"role": "user", "content": "Hi"}]) == "<s><user>Hi\n<assistant>"
    (text,) = generator.generate(["Hi"], chat=True, max_tokens=3, sampling=Sampling(), stop=())
    assert text.tokens == greedy(generator, generator.text.encode("<s><user>Hi\n<assistant>"), 3)
    with pytest.raises(InputError, match="refuses the messages: no tools"):
        generator.text.chat([{"role": "tool", "content": "x"}])


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1] * 64, {}, "the prompt has 64 tokens, and .*model.so was compiled for a context of 64"),
        ([259], {}, "the token 259; 0 to 258 are known"),
        ([1], {"max_tokens": 0}, "max_tokens is 0"),
        ("ab\udcff", {}, "bytes that are no UTF-8 text, the first as character 3"),
    ],
)
def test_wrong_prompts_are_refused(generator, prompt, options, message):
    with pytest.raises(InputError, match=message):
        generator.start(prompt, **options)
    with pytest.raises(InputError, match=message):
        generator.generate([PROMPT[:5], prompt], **options)
    assert generator.step() == [], "no text is left behind"


def test_other_artifacts_are_refused(tmp_path, artifact, monkeypatch):
    from tvm_sched_runtime.runtime import load

    module = load(artifact)
    about = module.info()
    monkeypatch.setattr(
        type(module), "info", lambda self: {**about, "generation": {**about["generation"], "version": 4}}
    )
    with pytest.raises(InputError, match="version 4, and 3 is known here"):
        Generator(module)
    monkeypatch.setattr(type(module), "info", lambda self: {"plans": about["plans"]})
    with pytest.raises(InputError, match="compiled without --generate"):
        Generator(module)
