"""What a network's best peer does in less time than ours: kernels by class, from the profiles of both.

Profiles are taken after the measurements, so their sums are a little above the latencies.
"""

from __future__ import annotations

Profile = dict[str, list[float]]
"""By kind of kernel: how many there are, and their seconds in a run; ours have a third figure, the roofline's seconds."""

CLASSES: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "softmax", "sdpa"),
    "convolution": ("conv",),
    "product": ("matmul", "gemm", "fullyconnected", "matrix_vector"),
    "normalization": ("norm", "moments", "mvn", "mean", "reduce", "lrn", "rms"),
    "pooling": ("pool",),
    "recurrent": ("lstm", "gru", "rnn", "scan", "loop"),
    "moving": (
        "concat", "transpose", "reshape", "reorder", "split", "slice", "gather", "take", "pad", "permute", "tile",
        "expand", "resize", "interpolate", "upsample", "shuffle", "squeeze", "flatten", "convert",
    ),
}  # fmt: skip
"""What is in the name of a kernel of each class, the first class that fits; the rest computes number by number."""
OTHERS = "elementwise"
_LEAST = 0.02
"""Share of our latency below which a difference is not told."""


def class_of(kind: str) -> str:
    """The class of a kernel by its name, ours or a peer's."""
    name = kind.lower()
    return next((each for each, words in CLASSES.items() if any(word in name for word in words)), OTHERS)


def by_class(profile: Profile) -> dict[str, float]:
    """Seconds of each class."""
    found: dict[str, float] = {}
    for kind, figures in profile.items():
        found[class_of(kind)] = found.get(class_of(kind), 0.0) + figures[1]
    return found


def longest(profile: Profile, count: int = 4) -> str:
    """The kernels that take longest: milliseconds, how many there are, and how far they are from their roofline."""
    groups = sorted(profile.items(), key=lambda each: -each[1][1])
    total = sum(figures[1] for figures in profile.values())
    said = []
    for kind, (number, seconds, *ideal) in groups[:count]:
        far = f", {seconds / ideal[0]:.1f} x roofline" if ideal and ideal[0] > 0 else ""
        said.append(f"`{kind}` {seconds * 1e3:.3g} ({number:.0f}{far})")
    return f"{', '.join(said)}; of {total * 1e3:.3g}" if said else ""


def missing(mine: Profile, peer: Profile) -> str:
    """The classes in which ours takes longer than the peer, those with most to gain first."""
    ours, theirs = by_class(mine), by_class(peer)
    least = _LEAST * sum(ours.values())
    lost = {each: seconds - theirs.get(each, 0.0) for each, seconds in ours.items()}
    said = [
        f"{each} {ours[each] * 1e3:.3g} against {theirs.get(each, 0.0) * 1e3:.3g}"
        for each, more in sorted(lost.items(), key=lambda pair: -pair[1])
        if more > least
    ]
    return "; ".join(said) or "no class of kernels"
