"""Format times, sizes and rates for people."""

from __future__ import annotations


def format_time(seconds: float) -> str:
    """Format seconds with three significant digits in a suitable unit: ``"1.23 ms"``, ``"45.6 µs"``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale * 0.9995:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{seconds * 1e9:.0f} ns" if seconds else "0 s"


def format_ns(nanoseconds: int) -> str:
    """Format integer nanoseconds as `format_time` does."""
    return format_time(nanoseconds / 1e9)


def format_spread(nanoseconds: int, interval: tuple[int, int] | None) -> str:
    """Format a predicted time with its interval of 80 %, if there is one: ``"1.60 ms, 1.30 to 2.10 ms with 80 %"``."""
    return format_ns(nanoseconds) + (f", {between_text(interval)}" if interval else "")


def between_text(interval: tuple[int, int]) -> str:
    """Format an interval of 80 %, in nanoseconds: ``"1.30 to 2.10 ms with 80 %"``."""
    low, high = (format_ns(each) for each in interval)
    return f"{low.removesuffix(high.rpartition(' ')[2]).strip()} to {high} with 80 %"


def why_outside(nanoseconds: int, interval: tuple[int, int] | None) -> str | None:
    """Return a sentence that explains why a predicted latency is outside of its interval; None if it is inside."""
    if interval is None or interval[0] <= nanoseconds <= interval[1]:
        return None
    at = f"{format_ns(nanoseconds)}, the latency at the likeliest time of each operator"
    if nanoseconds > interval[1]:
        return f"the interval lies below {at}: most of these operators are more likely faster than slower"
    return f"the interval lies above {at}: the latest of operators side by side decides, and in most draws one is late"


def format_bytes(size: float) -> str:
    """Format bytes in binary units, as memory is sold: ``"1.50 MiB"``."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{_digits(size / scale)} {unit}"
    return f"{size:.0f} B"


def format_rate(bytes_per_second: float) -> str:
    """Format bytes a second in decimal units, as links are sold: ``"25 GB/s"``."""
    for unit, scale in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if abs(bytes_per_second) >= scale:
            return f"{bytes_per_second / scale:.3g} {unit}"
    return f"{bytes_per_second:.3g} B/s"


def format_percent(fraction: float) -> str:
    """Format a fraction as per cent with one decimal."""
    return f"{100 * fraction:.1f}%"


def _digits(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
