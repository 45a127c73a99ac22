"""Steps that extend a random torch module by layers: products, convolutions, pools, norms, attention, recurrent cells."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .torch_builder import Draw, ModuleBuilder, Value


def _features(b: ModuleBuilder, draw: Draw, rank: int) -> Value:
    """Draw a float32 tensor of a rank without empty dimensions, or add it as an input."""
    existing = b.pick(draw, lambda v: v.dtype == "float32" and v.rank == rank and all(v.shape))
    if existing is not None:
        return existing
    sizes = [draw(st.sampled_from([2, 1]))] + [draw(st.sampled_from([4, 6, 5, 3])) for _ in range(rank - 1)]
    return b.input("float32", sizes)


def _bias(draw: Draw) -> str:
    return draw(st.sampled_from(["", ", bias=False"]))


def linear(b: ModuleBuilder, draw: Draw) -> None:
    """Add a Linear, Bilinear or Embedding layer."""
    x = _features(b, draw, draw(st.integers(1, 4)))
    if draw(st.integers(0, 3)):
        layer = b.layer(f"nn.Linear({x.shape[-1]}, {draw(st.sampled_from([3, 8, 1]))}{_bias(draw)})")
        b.emit(f"{layer}({x.name})", [x])
    elif draw(st.booleans()):
        layer = b.layer(f"nn.Bilinear({x.shape[-1]}, {x.shape[-1]}, 3)")
        b.emit(f"{layer}({x.name}, {x.name})", [x])
    else:
        i = b.add_input(b.numbers("int64", [2, 3]).abs())
        kind = draw(
            st.sampled_from(["nn.Embedding(5, 4)", "nn.Embedding(5, 4, padding_idx=0)", "nn.EmbeddingBag(5, 4)"])
        )
        b.emit(f"{b.layer(kind)}({i.name})", [i])


def convolution(b: ModuleBuilder, draw: Draw) -> None:
    """Add a convolution of one to three dimensions: grouped, dilated, transposed, with or without a batch."""
    dims = draw(st.sampled_from([2, 1, 3]))
    x = _features(b, draw, dims + 2 - (draw(st.integers(0, 5)) == 5))
    channels = x.shape[-dims - 1]
    transposed = draw(st.sampled_from(["", "", "Transpose"]))
    groups = draw(st.sampled_from([1, 1, channels, 2]))
    if channels % groups:
        return
    options = [
        f"stride={draw(st.sampled_from([1, 2, 3]))}",
        f"dilation={draw(st.sampled_from([1, 2]))}",
        f"groups={groups}",
    ]
    if not transposed and draw(st.integers(0, 4)) == 4:
        options[0] = "stride=1"
        options.append(f"padding='{draw(st.sampled_from(['same', 'valid']))}'")
    else:
        options.append(f"padding={draw(st.sampled_from([0, 1, 2]))}")
        if transposed:
            options.append(f"output_padding={draw(st.sampled_from([0, 1]))}")
        else:
            options.append(
                f"padding_mode='{draw(st.sampled_from(['zeros', 'zeros', 'reflect', 'circular', 'replicate']))}'"
            )
    kernel = draw(st.sampled_from([3, 1, 2])) if draw(st.booleans()) else tuple(
        draw(st.sampled_from([1, 2, 3])) for _ in range(dims))  # fmt: skip
    layer = b.layer(
        f"nn.Conv{transposed}{dims}d({channels}, {groups * draw(st.sampled_from([2, 1, 3]))}, {kernel}, "
        f"{', '.join(options)}{_bias(draw)})"
    )
    b.emit(f"{layer}({x.name})", [x])


def pooling(b: ModuleBuilder, draw: Draw) -> None:
    """Add a pool of one to three dimensions, or a resize."""
    dims = draw(st.sampled_from([2, 1, 3]))
    x = _features(b, draw, dims + 2 - (draw(st.integers(0, 5)) == 5))
    kernel, stride = draw(st.sampled_from([2, 3, 1])), draw(st.sampled_from([1, 2, 3]))
    pad, ceil = draw(st.sampled_from([0, 1])), draw(st.booleans())
    size = draw(st.sampled_from([1, 2, 3]))
    scale = draw(
        st.sampled_from(["scale_factor=2", f"size={tuple([size + 3] * dims)}", "scale_factor=1.5", "scale_factor=0.5"])
    )
    mode = draw(
        st.sampled_from(["nearest", "nearest-exact", {1: "linear", 2: "bilinear", 3: "trilinear"}[dims], "area"])
    )
    corners = draw(st.sampled_from(["", ", align_corners=True", ", align_corners=False"])) if "linear" in mode else ""
    forms = [
        f"F.max_pool{dims}d({x.name}, {kernel}, {stride}, {pad}, ceil_mode={ceil})",
        f"F.max_pool{dims}d({x.name}, {kernel}, {stride}, {pad}, dilation=2)",
        f"F.avg_pool{dims}d({x.name}, {kernel}, {stride}, {pad}, ceil_mode={ceil}, count_include_pad={draw(st.booleans())})",
        f"F.adaptive_avg_pool{dims}d({x.name}, {size})",
        f"F.adaptive_max_pool{dims}d({x.name}, {size})",
        f"F.lp_pool{dims}d({x.name}.abs() + 1, 2.0, {kernel})",
        f"F.interpolate({x.name}, {scale}, mode='{mode}'{corners})",
    ]
    if dims == 2:
        forms += [f"F.interpolate({x.name}, {scale}, mode='bicubic')", f"F.pixel_unshuffle({x.name}, 2)",
                  f"F.avg_pool2d({x.name}, {kernel}, divisor_override=3)", f"F.pixel_shuffle({x.name}, 2)",
                  f"F.interpolate({x.name}, {scale}, mode='bilinear', antialias=True)",
                  f"F.unfold({x.name}, {kernel}, padding={pad}, stride={stride})", f"F.channel_shuffle({x.name}, 2)",
                  f"F.max_pool2d({x.name}, {kernel}, {stride}, return_indices=True)",
                  f"F.grid_sample({x.name}, {x.name}[:, :2].permute(0, 2, 3, 1).tanh(), align_corners={ceil})"]  # fmt: skip
    text = draw(st.sampled_from(forms))
    if "return_indices" in text:
        if x.exact:
            b.emit_all(text, [x], steep=True)
    else:
        b.emit(text, [x], exact=text.startswith(("F.max_pool", "F.adaptive_max", "F.pixel", "F.unfold", "F.channel")))


def norm(b: ModuleBuilder, draw: Draw) -> None:
    """Add a normalising layer."""
    dims = draw(st.sampled_from([2, 1, 3]))
    x = _features(b, draw, dims + 2)
    channels = x.shape[1]
    affine = draw(st.booleans())
    last = draw(st.integers(1, dims))
    constructor = draw(st.sampled_from([
        f"nn.BatchNorm{dims}d({channels}, affine={affine})",
        f"nn.BatchNorm{dims}d({channels}, track_running_stats=False)",
        f"nn.InstanceNorm{dims}d({channels}, affine={affine})",
        f"nn.InstanceNorm{dims}d({channels}, track_running_stats=True)",
        f"nn.GroupNorm({1 if channels % 2 else 2}, {channels}, affine={affine})",
        f"nn.LayerNorm({list(x.shape[-last:])}, elementwise_affine={affine})",
        f"nn.LayerNorm({x.shape[-1]}, bias=False)",
        f"nn.RMSNorm({x.shape[-1]}, elementwise_affine={affine})",
        "nn.LocalResponseNorm(2)",
        f"nn.PReLU({draw(st.sampled_from([1, channels]))})",
        "nn.Dropout(0.3)",
        "nn.Softmax2d()",
    ]))  # fmt: skip
    b.emit(f"{b.layer(constructor)}({x.name})", [x])


def attention(b: ModuleBuilder, draw: Draw) -> None:
    """Add attention in one of three forms, with or without a mask, or with grouped queries."""
    rank = draw(st.sampled_from([4, 3]))
    q = _features(b, draw, rank)
    masked = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    kind = draw(st.sampled_from(["sdpa", "sdpa", "gqa", "multi", "encoder"]))
    if kind in ("multi", "encoder"):
        x = _features(b, draw, 3)
        width = x.shape[2]
        heads = 2 if width % 2 == 0 else 1
        if kind == "multi":
            layer = b.layer(f"nn.MultiheadAttention({width}, {heads}, batch_first={draw(st.booleans())}{_bias(draw)})")
            weights = draw(st.booleans())
            b.emit_all(f"{layer}({x.name}, {x.name}, {x.name}, need_weights={weights})", [x])
        else:
            first = draw(st.booleans())
            layer = b.layer(f"nn.TransformerEncoderLayer({width}, {heads}, 8, batch_first=True, norm_first={first})")
            b.emit(f"{layer}({x.name})", [x])
        return
    length = q.shape[-2]
    options, inputs = "", [q]
    if masked == "causal":
        options = ", is_causal=True"
    elif masked != "none":
        import torch

        mask = torch.ones(length, length).tril().bool() if masked == "bool" else b.numbers("float32", [length, length])
        m = b.add_input(mask)
        inputs.append(m)
        options = f", attn_mask={m.name}"
    if draw(st.booleans()):
        options += ", scale=0.3"
    key = q.name
    if kind == "gqa":
        if rank != 4:
            return
        key, options = f"{q.name}[:, :1]", options + ", enable_gqa=True"
    b.emit(f"F.scaled_dot_product_attention({q.name}, {key}, {key} * 2{options})", inputs)


def recurrent(b: ModuleBuilder, draw: Draw) -> None:
    """Add an LSTM, GRU or RNN layer, or a single cell."""
    x = _features(b, draw, 3)
    width = x.shape[2]
    name = draw(st.sampled_from(["LSTM", "GRU", "RNN"]))
    if draw(st.integers(0, 3)) == 3:
        layer = b.layer(f"nn.{name}Cell({width}, 3{_bias(draw)})")
        (b.emit_all if name == "LSTM" else b.emit)(f"{layer}({x.name}[0])", [x])
        return
    both = draw(st.booleans())
    layers = draw(st.sampled_from([1, 1, 2]))
    first = draw(st.booleans())
    extra = ", nonlinearity='relu'" if name == "RNN" and draw(st.booleans()) else ""
    if name == "LSTM" and draw(st.integers(0, 4)) == 4:
        extra += ", proj_size=2"
    layer = b.layer(f"nn.{name}({width}, 4, {layers}, bidirectional={both}, batch_first={first}{_bias(draw)}{extra})")
    result = f"{layer}({x.name})"
    b.emit(f"{result}[0]", [x])
    if draw(st.booleans()):
        b.emit(f"{result}[1]" + ("[1]" if name == "LSTM" else ""), [x])


LAYERS: tuple[Any, ...] = (linear, convolution, convolution, pooling, pooling, norm, attention, recurrent)
