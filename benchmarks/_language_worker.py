"""One engine with one model in a process of its own: answers lines of JSON with the seconds of prompts and decode steps.

``python _language_worker.py ENGINE PATH THREADS`` prints a line when the model is loaded. Then each line ``{"tokens": [...],
"steps": N}`` is answered with processor seconds and seconds for the prompt with its first token, and with N further tokens.
"""

import json
import os
import sys
import time

Seconds = tuple[float, float]
"""Processor time of all threads of the process, and time."""


def clock() -> Seconds:
    """Both clocks."""
    return time.process_time(), time.perf_counter()


class Ours:
    """tvm_sched."""

    def __init__(self, path: str, threads: int) -> None:
        from tvm_sched_language import Generator, Sampling

        self.greedy = Sampling()
        self.generator = Generator(path, threads=threads)

    def run(self, tokens: list[int], steps: int) -> list[Seconds]:
        """Times at the start, after the first token, and after the last."""
        times = [clock()]
        for number, _ in enumerate(self.generator.stream(tokens, max_tokens=steps + 1, sampling=self.greedy, stop=())):
            if number == 0:
                times.append(clock())
        return [*times, clock()]


class Transformers:
    """PyTorch and transformers; PATH is FOLDER:DTYPE."""

    def __init__(self, path: str, threads: int) -> None:
        import torch
        import transformers

        folder, _, dtype = path.rpartition(":")
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(self, tokens: list[int], steps: int) -> list[Seconds]:
        """Times at the start, after the first token, and after the last."""
        torch = self.torch
        times = [clock()]
        with torch.inference_mode():
            ids, past = torch.tensor([tokens]), None
            for step in range(steps + 1):
                result = self.model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
                ids, past = result.logits[:, -1:].argmax(-1), result.past_key_values
                if step == 0:
                    times.append(clock())
        return [*times, clock()]


class LlamaCpp:
    """llama.cpp by xllamacpp; PATH is a GGUF file."""

    def __init__(self, path: str, threads: int) -> None:
        import xllamacpp

        given = xllamacpp.CommonParams()
        given.model.path, given.n_ctx, given.n_parallel, given.warmup = path, 1024, 1, False
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(given)

    def run(self, tokens: list[int], steps: int) -> list[Seconds]:
        """Times at the start, after the first token, and after the last, by two requests."""
        times = [(0.0, 0.0)]
        for count in (1, steps + 1):
            asked = {"prompt": tokens, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
            begin = clock()
            self.server.handle_completions(asked)
            end = clock()
            times.append((end[0] - begin[0], end[1] - begin[1]))
        return times


class OpenVino:
    """OpenVINO GenAI; PATH is FOLDER:PRECISION, the precision of its arithmetic; "" is its default."""

    def __init__(self, path: str, threads: int) -> None:
        import openvino
        import openvino_genai

        folder, _, precision = path.rpartition(":")
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        if precision:
            settings["INFERENCE_PRECISION_HINT"] = precision
        self.openvino, self.genai = openvino, openvino_genai
        self.model = openvino_genai.LLMPipeline(folder, "CPU", **settings)

    def run(self, tokens: list[int], steps: int) -> list[Seconds]:
        """Times at the start, after the first token, and after the last."""
        import numpy

        genai, times = self.genai, []

        class Watch(genai.StreamerBase):
            def write(self, token):
                if not times:
                    times.append(clock())
                return genai.StreamingStatus.RUNNING

            def end(self):
                pass

        ids = numpy.array([tokens], numpy.int64)
        given = genai.TokenizedInputs(self.openvino.Tensor(ids), self.openvino.Tensor(numpy.ones_like(ids)))
        options = genai.GenerationConfig()
        options.max_new_tokens, options.ignore_eos, options.do_sample = steps + 1, True, False
        start = clock()
        self.model.generate(given, options, Watch())
        return [start, *times, clock()]


class OnnxRuntime:
    """ONNX Runtime GenAI; PATH is a folder that its builder wrote."""

    def __init__(self, path: str, threads: int) -> None:
        import onnxruntime_genai

        self.genai = onnxruntime_genai
        config = onnxruntime_genai.Config(path)
        session = {"session_options": {"intra_op_num_threads": threads, "inter_op_num_threads": 1}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self.model = onnxruntime_genai.Model(config)

    def run(self, tokens: list[int], steps: int) -> list[Seconds]:
        """Times at the start, after the first token, and after the last."""
        options = self.genai.GeneratorParams(self.model)
        options.set_search_options(max_length=1024, min_length=len(tokens) + steps + 1, do_sample=False)
        times = [clock()]
        generator = self.genai.Generator(self.model, options)
        generator.append_tokens(tokens)
        for step in range(steps + 1):
            generator.generate_next_token()
            if step == 0:
                times.append(clock())
        return [*times, clock()]


ENGINES = {
    "tvm_sched": Ours, "transformers": Transformers, "llama.cpp": LlamaCpp, "OpenVINO GenAI": OpenVino,
    "ONNX Runtime GenAI": OnnxRuntime,
}  # fmt: skip


def main() -> None:
    """Load the model, then answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    engine, path, threads = sys.argv[1:4]
    loaded = ENGINES[engine](path, int(threads))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start, first, last = loaded.run(asked["tokens"], asked["steps"])
        prompt = [b - a for a, b in zip(start, first, strict=True)]
        whole = [b - a for a, b in zip(start, last, strict=True)]
        print(json.dumps({"prompt": prompt, "whole": whole}), file=answers, flush=True)


if __name__ == "__main__":
    main()
