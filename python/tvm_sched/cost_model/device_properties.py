"""Properties of devices that the learned cost model needs: rates, processors and cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tvm_sched_runtime.problem import Device


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a device for the learned model."""

    name: str
    """Shown to people; it also groups measurements."""
    kind: str
    rates: Mapping[str, float]
    """Floating-point operations a second by dtype; dtypes that are not listed have the rate of ``"float32"``."""
    bandwidth: float
    """Bytes a second."""
    processors: int
    """Streaming multiprocessors of a GPU, threads of a CPU device."""
    cache: float
    """Bytes of the last-level cache."""

    def peak(self, dtype: str) -> float:
        """Return the floating-point operations a second; an unlisted 8- or 16-bit type has the rate of a 16-bit type."""
        if dtype in self.rates:
            return self.rates[dtype]
        half = self.rates.get("bfloat16", self.rates.get("float16"))
        if half is not None and dtype in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
            return half
        return rate_of(self.rates, dtype)


def rate_of(rates: Mapping[str, float], dtype: str) -> float:
    """Return the operations a second of kernels that multiply a type; if not listed, that of ``"float32"``.

    ``"tf32"`` is float32 with operands rounded for tensor cores. If it is not listed, its rate is half that of bfloat16, as
    in NVIDIA's data sheets since Ampere. GPUs without bfloat16 have no TF32 either.
    """
    if dtype == "tf32" and dtype not in rates and "bfloat16" in rates:
        return rates["bfloat16"] / 2
    return rates.get(dtype, rates["float32"])


def _gpu(
    name: str, processors: int, cache_mb: float, float32: float, bfloat16: float, bandwidth_gb: float, fp8: float = 0
) -> DeviceProperties:
    rates = {"float32": float32 * 1e12, "bfloat16": bfloat16 * 1e12, "float16": bfloat16 * 1e12}
    if fp8:
        rates["float8_e4m3fn"] = fp8 * 1e12
    return DeviceProperties(name, "cuda", rates, bandwidth_gb * 1e9, processors, cache_mb * 1e6)


# Streaming multiprocessors, MB of level-2 cache, dense TFLOP/s (float32 without, bfloat16 and fp8 on tensor cores) and GB/s:
# NVIDIA's architecture white papers and data sheets of Volta, Ampere, Ada, Hopper and Blackwell.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("V100", 80, 6, 15.7, 125, 900),
        _gpu("A100", 108, 40, 19.5, 312, 2039),
        _gpu("MIG 1G 5GB", 14, 5, 2.53, 40.4, 194),  # of an A100 40 GB: 1/8 of cache and memory
        _gpu("A30", 56, 24, 10.3, 165, 933),
        _gpu("A40", 84, 6, 37.4, 149.7, 696),
        _gpu("A6000", 84, 6, 38.7, 154.8, 768),
        _gpu("L4", 58, 48, 30.3, 121, 300, 242),
        _gpu("L40S", 142, 96, 91.6, 362, 864, 733),
        _gpu("H100", 132, 50, 66.9, 989, 3350, 1979),
        _gpu("H200", 132, 50, 66.9, 989, 4800, 1979),
        _gpu("B200", 148, 126, 75, 2250, 8000, 4500),
        _gpu("GB200", 152, 126, 80, 2500, 8000, 5000),
        _gpu("B300", 148, 126, 75, 2250, 8000, 4500),
        _gpu("GB300", 152, 126, 80, 2500, 8000, 5000),
        _gpu("RTX PRO 6000", 188, 128, 120, 504, 1597, 1008),
    )
}
"""Known GPUs by product name."""

CPU_CACHE = 32e6
"""Assumed bytes of last-level cache of a CPU device."""
_FLOPS_PER_PROCESSOR = {"cuda": 128 * 2 * 1.6e9, "cpu": 255e9}
"""float32 operations a second of one multiprocessor since Ampere, and of one of oneDNN's threads. They serve to guess the
number of processors of a device of which only the rates are known."""


def guess_processors(kind: str, rate: float) -> int:
    """Guess a GPU's streaming multiprocessors, or a CPU device's threads, from its float32 operations a second."""
    return max(round(rate / _FLOPS_PER_PROCESSOR[kind]), 1)


def known_gpu(model: str) -> DeviceProperties | None:
    """Return the GPU of a product name such as ``"NVIDIA H200 SXM 141 GB"``, or None; the longest match counts."""
    words = re.sub(r"[^A-Za-z0-9]+", " ", model).upper()
    matches = [name for name in GPUS if re.search(rf"(?<![A-Z0-9]){name.upper()}(?![0-9])", words)]
    return GPUS[max(matches, key=len)] if matches else None


def properties(device: Device) -> DeviceProperties:
    """Return the properties of a topology's device: its rates, and its chip's known or guessed processors and cache."""
    rate = device.peak_flops["float32"]
    if device.kind == "cpu":
        threads = device.threads or guess_processors("cpu", rate)
        return DeviceProperties(
            device.model or device.name, "cpu", device.peak_flops, device.memory_bandwidth, threads, CPU_CACHE
        )
    chip, guess = known_gpu(device.model or device.name), guess_processors(device.kind, rate)
    processors, cache = (chip.processors, chip.cache) if chip else (guess, 6e6)
    return DeviceProperties(
        chip.name if chip else device.model or device.name,
        "cuda", device.peak_flops, device.memory_bandwidth, processors, cache,
    )  # fmt: skip
