"""Small networks written here: recurrent, generative, on graphs, of recommenders, with caches and loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

OWN: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {}


def network(*inputs: Callable[[], torch.Tensor]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a class with what makes its inputs."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        OWN[kind.__name__] = lambda: (kind().eval(), tuple(make() for make in inputs))
        return kind

    return register


def noise(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


def whole(high: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, high, shape)


@network(noise(1, 40, 16))
class BiLstmCtc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 12, 2, bidirectional=True, batch_first=True), nn.Linear(24, 9)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.head(self.lstm(x)[0]).log_softmax(-1)
        best = scores.argmax(-1)
        kept = (best != 0) & (best != F.pad(best, (1, 0), value=-1)[:, :-1])
        return scores, torch.where(kept, best, -1)


@network(whole(20, 1, 9), whole(20, 1, 6))
class GruAttentionTranslator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(20, 12), nn.GRU(12, 16, batch_first=True, bidirectional=True)
        self.cell, self.key, self.head = nn.GRUCell(12 + 32, 16), nn.Linear(32, 16), nn.Linear(48, 20)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        memory, last = self.encoder(self.words(source))
        state, key, found = last[0] + last[1], self.key(memory), []
        for step in range(target.shape[1]):
            weight = torch.einsum("bth,bh->bt", key, state).softmax(-1)
            context = torch.einsum("bt,bth->bh", weight, memory)
            state = self.cell(torch.cat([self.words(target[:, step]), context], -1), state)
            found.append(self.head(torch.cat([state, context], -1)))
        return torch.stack(found, 1)


@network(noise(1, 3, 50))
class TemporalConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 8, 8, 8]
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(a, b, 3, dilation=2**i))
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        )

    def forward(self, x: torch.Tensor) -> Any:
        for i, layer in enumerate(self.layers):
            y = F.relu(layer(F.pad(x, (2 * 2**i, 0))))
            x = y if x.shape != y.shape else x + y
        return x[..., -1]


@network(whole(32, 1, 60), noise(1, 4, 60))
class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Embedding(32, 8)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4))
        self.conditions = nn.ModuleList(nn.Conv1d(4, 16, 1) for _ in range(4))
        self.outs = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(4))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(8, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1))

    def forward(self, samples: torch.Tensor, condition: torch.Tensor) -> Any:
        x, skipped = self.start(samples).mT, 0
        for i, (gate, local, out) in enumerate(zip(self.gates, self.conditions, self.outs, strict=True)):
            a, b = (gate(F.pad(x, (2**i, 0))) + local(condition)).chunk(2, 1)
            rest, skip = out(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, skipped = (x + rest) * math.sqrt(0.5), skipped + skip
        return self.head(skipped)


class _UNet(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        up = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        norm = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]

        def block(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                conv(a, b, 3, padding=1), norm(b, affine=True), nn.LeakyReLU(0.1), conv(b, b, 3, padding=1)
            )

        self.downs = nn.ModuleList([block(1, 4), block(4, 8), block(8, 16)])
        self.ups = nn.ModuleList([up(16, 8, 2, 2), up(8, 4, 2, 2)])
        self.joins = nn.ModuleList([block(16, 8), block(8, 4)])
        self.pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1](2)

    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for i, down in enumerate(self.downs):
            x = down(x if i == 0 else self.pool(x))
            kept.append(x)
        for up, join, skip in zip(self.ups, self.joins, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return x


@network(noise(2, 1, 32))
class UNet1d(_UNet):
    def __init__(self) -> None:
        super().__init__(1)


@network(noise(1, 1, 8, 8, 8))
class UNet3d(_UNet):
    def __init__(self) -> None:
        super().__init__(3)


@network(noise(2, 1, 16, 16), noise(2, 6))
class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1), nn.SiLU(), nn.Conv2d(4, 8, 4, 2, 1), nn.Flatten(), nn.Linear(128, 12)
        )
        self.decode = nn.Sequential(
            nn.Linear(6, 128), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ELU(),
            nn.ConvTranspose2d(4, 1, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, drawn: torch.Tensor) -> Any:
        mean, log_variance = self.encode(x).chunk(2, -1)
        y = self.decode(mean + drawn * (0.5 * log_variance).exp())
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
        return y, F.binary_cross_entropy(y, x.sigmoid(), reduction="none").sum((1, 2, 3)) + divergence


@network(noise(1, 3, 8, 8))
class VectorQuantiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.codes = nn.Conv2d(3, 6, 2, 2), nn.Embedding(10, 6)
        self.decode = nn.Sequential(nn.Conv2d(6, 12, 1), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> Any:
        z = self.encode(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, 6)
        chosen = torch.cdist(flat, self.codes.weight).argmin(1)
        found = F.embedding(chosen, self.codes.weight).view(1, 4, 4, 6).permute(0, 3, 1, 2)
        used = F.one_hot(chosen, 10).float().mean(0)
        return self.decode(z + (found - z).detach()), chosen, (-(used * (used + 1e-10).log()).sum()).exp()


@network(noise(3, 6))
class NormalisingFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6)) for _ in range(3))
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0] + 0.1 * torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> Any:
        total = torch.zeros(x.shape[0])
        for net in self.nets:
            x = x @ self.weight
            a, b = x.chunk(2, -1)
            scale, shift = net(a).chunk(2, -1)
            x = torch.cat([b * scale.tanh().exp() + shift, a], -1)
            total = total + scale.tanh().sum(-1)
        return x, total - 0.5 * (x**2 + math.log(2 * math.pi)).sum(-1)


@network(noise(1, 4))
class SplineFlow(nn.Module):
    """A rational-quadratic spline: searchsorted, gather and where."""

    def __init__(self) -> None:
        super().__init__()
        self.widths, self.heights, self.slopes = (nn.Parameter(torch.randn(4, n)) for n in (5, 5, 6))

    def forward(self, x: torch.Tensor) -> Any:
        w = F.pad(F.softmax(self.widths, -1).cumsum(-1), (1, 0)) * 6 - 3
        h = F.pad(F.softmax(self.heights, -1).cumsum(-1), (1, 0)) * 6 - 3
        d = F.softplus(self.slopes) + 1e-3
        inside = (x > -3) & (x < 3)
        at = (torch.searchsorted(w.contiguous(), x.clamp(-2.99, 2.99).mT.contiguous()) - 1).clamp(0, 4)
        pick = lambda t, k=0: t.gather(-1, at + k).mT  # noqa: E731
        x0, x1, y0, y1, d0, d1 = pick(w), pick(w, 1), pick(h), pick(h, 1), pick(d), pick(d, 1)
        slope, t = (y1 - y0) / (x1 - x0), (x - x0) / (x1 - x0)
        y = y0 + (y1 - y0) * (slope * t**2 + d0 * t * (1 - t)) / (slope + (d0 + d1 - 2 * slope) * t * (1 - t))
        return torch.where(inside, y, x)


@network(noise(7, 5), whole(7, 2, 15))
class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 4)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        source, target = edges
        degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones(target.shape[0])) + 1
        for layer in self.layers:
            h = layer(x) * degree.rsqrt()[:, None]
            x = F.relu((h + torch.zeros_like(h).index_add_(0, target, h[source])) * degree.rsqrt()[:, None])
        return x


@network(noise(7, 6), whole(7, 2, 15))
class GraphAttention(nn.Module):
    """Softmax over the edges of each node by scatter_reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.left, self.right = nn.Linear(6, 8), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
        source, target = edges[0], edges[1]
        score = F.leaky_relu(self.left(x)[source] + self.right(x)[target], 0.2)
        where = target[:, None].expand(-1, 2)
        top = torch.zeros(7, 2).scatter_reduce(0, where, score, "amax", include_self=False)
        weight = (score - top[target]).exp()
        total = torch.zeros(7, 2).scatter_add(0, where, weight)[target]
        sent = (weight / total.clamp(min=1e-6))[..., None] * self.value(x)[source].view(-1, 2, 4)
        mean = torch.zeros(7, 8).scatter_reduce(0, target[:, None].expand(-1, 8), sent.flatten(1), "mean")
        return torch.zeros(7, 2, 4).index_add(0, target, sent), mean


@network(noise(2, 4), whole(20, 11), lambda: torch.tensor([0, 4]), whole(10, 2, 3))
class RecommenderWithBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="sum")
        self.mean = nn.EmbeddingBag(10, 8, mode="mean")
        self.bottom = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor, fixed: torch.Tensor) -> Any:
        parts = torch.stack([self.bottom(dense), self.bag(ids, offsets), self.mean(fixed)], 1)
        i, j = torch.tril_indices(3, 3, -1)
        return self.top(torch.cat([parts[:, 0], torch.bmm(parts, parts.mT)[:, i, j]], -1))


@network(whole(50, 2, 6), noise(2, 3))
class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(50, 4), nn.Embedding(50, 1)
        self.cross = nn.ParameterList([nn.Parameter(torch.randn(27, 27) * 0.1) for _ in range(2)])
        self.deep = nn.Sequential(nn.Linear(27, 16), nn.PReLU(), nn.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> Any:
        e = self.table(ids)
        machine = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(-1, keepdim=True)
        x = x0 = torch.cat([e.flatten(1), dense], -1)
        for weight in self.cross:
            x = x0 * (x @ weight) + x
        return torch.sigmoid(self.linear(ids).sum(1) + machine + self.deep(x))


@network(noise(2, 5, 12))
class DenseMixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(12, 6)
        self.up, self.down = nn.Parameter(torch.randn(6, 12, 16) * 0.2), nn.Parameter(torch.randn(6, 16, 12) * 0.2)

    def forward(self, x: torch.Tensor) -> Any:
        weight, chosen = self.router(x).softmax(-1).topk(2, -1)
        gates = torch.zeros(2, 5, 6).scatter(-1, chosen, weight / weight.sum(-1, keepdim=True))
        y = torch.einsum("bsh,ehf->besf", x, self.up)
        y = torch.einsum("besf,efh->besh", F.silu(y), self.down)
        return torch.einsum("besh,bse->bsh", y, gates), gates.mean((0, 1))


@network(noise(2, 5, 12))
class GatheredMixtureOfExperts(nn.Module):
    """The weights of the chosen experts are gathered for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weight = nn.Linear(12, 6, bias=False), nn.Parameter(torch.randn(6, 12, 12) * 0.2)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.router(x).sigmoid()
        groups = scores.view(2, 5, 2, 3).topk(2, -1).values.sum(-1)
        allowed = torch.zeros_like(groups).scatter_(-1, groups.topk(1, -1).indices, 1).bool()
        scores = scores.masked_fill(~allowed.repeat_interleave(3, -1), float("-inf"))
        weight, chosen = scores.topk(2, -1, sorted=False)
        return (torch.einsum("bsh,bskhf->bskf", x, self.weight[chosen]) * weight[..., None]).sum(2)


@network(noise(1, 3, 16, 16), lambda: torch.tensor([37]), noise(1, 5, 8))
class DiffusionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.into, self.out = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.down, self.up = nn.Conv2d(16, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(3))
        self.attention = nn.MultiheadAttention(16, 4, kdim=8, vdim=8, batch_first=True)

    def forward(self, x: torch.Tensor, step: torch.Tensor, context: torch.Tensor) -> Any:
        angles = step[:, None].float() * torch.exp(-math.log(10000) * torch.arange(8) / 8)
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h0 = self.into(x)
        h = self.down(F.silu(self.norms[0](h0))) + t[:, :, None, None]
        tokens = self.norms[1](h).flatten(2).mT
        h = h + self.attention(tokens, context, context)[0].mT.unflatten(2, (8, 8))
        h = self.up(F.interpolate(h, scale_factor=2.0, mode="nearest")) + h0
        return self.out(F.silu(self.norms[2](h)))


@network(noise(1, 1, 32), noise(1, 2, 10, 8), noise(1, 2, 10, 8), lambda: torch.tensor([6]))
class RotaryDecodeWithCache(nn.Module):
    """One token; its key and value are written to the cache at a position that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> Any:
        angle = torch.outer(at.float(), 10000 ** (-torch.arange(0, 8, 2) / 8)).repeat(1, 2)

        def turn(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return y * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

        q = turn(self.q(x).view(1, 1, 4, 8).transpose(1, 2))
        k, v = self.kv(x).view(1, 1, 2, 2, 8).permute(2, 0, 3, 1, 4)
        keys, values = keys.index_copy(2, at, turn(k)), values.index_copy(2, at, v)
        mask = torch.arange(10)[None, None, None] <= at
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2)), keys, values


@network(noise(8, 3))
class KalmanFilter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("move", torch.eye(4) + 0.1 * torch.randn(4, 4))
        self.register_buffer("see", torch.randn(3, 4))

    def forward(self, seen: torch.Tensor) -> Any:
        state, spread, found = torch.zeros(4), torch.eye(4), []
        for z in seen.unbind(0):
            state, spread = self.move @ state, self.move @ spread @ self.move.T + 0.1 * torch.eye(4)
            shown = self.see @ spread @ self.see.T + 0.5 * torch.eye(3)
            gain = torch.linalg.solve(shown, self.see @ spread).T
            state, spread = state + gain @ (z - self.see @ state), (torch.eye(4) - gain @ self.see) @ spread
            found.append(state)
        return torch.stack(found), spread


@network(noise(1, 512))
class SpectrogramByConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.outer(torch.arange(33), torch.arange(64)) / 64
        basis = torch.cat([angle.cos(), -angle.sin()])[:, None] * torch.hann_window(64)
        self.register_buffer("basis", basis)
        self.register_buffer("mel", torch.rand(10, 33))

    def forward(self, x: torch.Tensor) -> Any:
        parts = F.conv1d(F.pad(x[:, None], (32, 32), mode="reflect"), self.basis, stride=16)
        power = parts.unflatten(1, (2, 33)).square().sum(1)
        levels = 10 * (self.mel @ power).clamp(min=1e-10).log10()
        return torch.maximum(levels, levels.amax((-1, -2), keepdim=True) - 80), parts.mT


@network(noise(1, 400))
class SpectrogramByStft(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True).abs()


@network(noise(2, 16, 8))
class FourierMixer(nn.Module):
    """A global filter: rfft, a product with complex weights, irfft."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, 8, 2) * 0.2)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(self.weight), n=16, dim=1)


@network(noise(1, 2, 12, 12), noise(1, 12, 12, 2))
class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.find = nn.Sequential(nn.Flatten(), nn.Linear(288, 6))

    def forward(self, x: torch.Tensor, flow: torch.Tensor) -> Any:
        grid = F.affine_grid(self.find(x).view(-1, 2, 3), [1, 2, 10, 10], align_corners=False)
        warped = F.grid_sample(x, flow.tanh(), mode="nearest", padding_mode="border", align_corners=True)
        return (
            F.grid_sample(x, grid, align_corners=False),
            warped,
            F.grid_sample(x, flow, padding_mode="reflection", align_corners=False),
        )


@network(noise(1, 4, 9, 9), noise(1, 18, 9, 9))
class DeformableByGather(nn.Module):
    """A deformable convolution written with unfold and grid_sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4 * 9) * 0.2)

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> Any:
        base = torch.stack(torch.meshgrid(torch.arange(9.0), torch.arange(9.0), indexing="xy"), -1)
        taps = []
        for k in range(9):
            at = base + torch.tensor([k % 3 - 1.0, k // 3 - 1.0]) + offsets[0, 2 * k : 2 * k + 2].permute(1, 2, 0)
            taps.append(F.grid_sample(x, (at / 4 - 1)[None], align_corners=True))
        return torch.einsum("oc,bchw->bohw", self.weight, torch.cat(taps, 1)), F.fold(
            F.unfold(x, 3, padding=1), (9, 9), 3, padding=1
        )


@network(noise(2, 10, 6))
class NeuralOde(nn.Module):
    """Runge-Kutta steps of a small field, with a log-determinant by its trace."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(7, 16), nn.Softplus(), nn.Linear(16, 6))

    def forward(self, x: torch.Tensor) -> Any:
        for n in range(3):
            f = lambda y, t=n: self.field(torch.cat([y, torch.full_like(y[..., :1], t / 3)], -1))  # noqa: E731
            k1 = f(x)
            k2 = f(x + k1 / 6)
            k3 = f(x + k2 / 6)
            x = x + (k1 + 2 * k2 + 2 * k3 + f(x + k3 / 3)) / 18
        return x


@network(noise(3, 8), noise(1, 12))
class HyperNetwork(nn.Module):
    """Weights that a network makes; a grouped convolution with weights of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.style = nn.Linear(12, 8 * 4), nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(1, 6, 4, 3, 3))

    def forward(self, x: torch.Tensor, code: torch.Tensor) -> Any:
        y = F.linear(x, self.make(code).view(4, 8))
        weight = self.weight * (self.style(x).view(3, 1, 4, 1, 1) + 1)
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        picture = y.view(3, 4, 1, 1).expand(3, 4, 5, 5).reshape(1, 12, 5, 5)
        return F.conv2d(picture, weight.view(18, 4, 3, 3), padding=1, groups=3).view(3, 6, 5, 5)


@network(noise(2, 3, 20), noise(2, 3))
class PointNet(nn.Module):
    """Neighbours by distance (knn), edge convolution, maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.head = nn.Conv2d(6, 8, 1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, centre: torch.Tensor) -> Any:
        x = x - centre[..., None]
        inner = -2 * x.mT @ x
        square = (x**2).sum(1, keepdim=True)
        near = (-square.mT - inner - square).topk(4, -1).indices
        points = x.mT.reshape(40, 3)
        rows = (near + torch.arange(2).view(2, 1, 1) * 20).view(-1)
        around = points[rows].view(2, 20, 4, 3)
        middle = x.mT[:, :, None].expand(-1, -1, 4, -1)
        feature = self.edge(torch.cat([around - middle, middle], 3).permute(0, 3, 1, 2)).amax(-1)
        return self.head(feature.max(-1).values), near


@network(noise(1, 16, 12), lambda: torch.tensor([[1, 5, 9]]))
class LinearAttention(nn.Module):
    """Causal linear attention with decay by cumulative sums, and tokens picked by position."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.decay = nn.Linear(12, 36), nn.Parameter(torch.rand(12))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k[..., None] * v[..., None, :]).cumsum(1)
        y = torch.einsum("bsd,bsde->bse", q, state) / torch.einsum("bsd,bsd->bs", q, k.cumsum(1))[..., None]
        distance = torch.arange(16)[:, None] - torch.arange(16)
        kernel = torch.exp(-self.decay[:, None, None] * distance.clamp(min=0)).tril()
        z = torch.einsum("dst,btd->bsd", kernel, v)
        return torch.take_along_dim(y + z, places[..., None].expand(-1, -1, 12), 1)


@network(noise(1, 6, 5), lambda: torch.tensor([[True, True, False, True, True, False]]))
class ConditionalRandomField(nn.Module):
    """Forward scores and the Viterbi path of a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = nn.Parameter(torch.randn(5, 5))

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> Any:
        total, best, back = scores[:, 0], scores[:, 0], []
        for t in range(1, 6):
            step = torch.logsumexp(total[..., None] + self.moves + scores[:, t, None], 1)
            total = torch.where(mask[:, t, None], step, total)
            value, place = (best[..., None] + self.moves).max(1)
            best = torch.where(mask[:, t, None], value + scores[:, t], best)
            back.append(place)
        tag = best.argmax(-1)
        path = [tag]
        for place in reversed(back):
            tag = place.gather(1, tag[:, None])[:, 0]
            path.append(tag)
        return total.logsumexp(-1), torch.stack(path[::-1], 1)


@network(noise(2, 8, 6), noise(2, 5, 6), lambda: torch.tensor([[False] * 6 + [True] * 2, [False] * 8]))
class TorchTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(6, 2, 1, 1, 12, batch_first=True, norm_first=True, activation="gelu")

    def forward(self, source: torch.Tensor, target: torch.Tensor, hidden: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.model(
            source,
            target,
            tgt_mask=mask,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )


@network(noise(1, 5, 3, 8, 8))
class ConvLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(3 + 4, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        h = c = torch.zeros(1, 4, 8, 8)
        for t in range(x.shape[1]):
            i, f, o, g = self.gates(torch.cat([x[:, t], h], 1)).split(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h, c


@network(noise(2, 3, 10), lambda: torch.tensor([10, 6]))
class PackedLstm(nn.Module):
    """A padded batch, read to each length: last state by gather, attention over what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.rnn, self.cell = (
            nn.LSTM(3, 5, batch_first=True),
            nn.RNN(3, 5, batch_first=True),
            nn.LSTMCell(5, 5),
        )

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        y, _ = self.lstm(x.mT)
        last = y.gather(1, (lengths - 1).view(2, 1, 1).expand(-1, 1, 5)).squeeze(1)
        mask = torch.arange(10)[None] >= lengths[:, None]
        weight = y.mean(-1).masked_fill(mask, -torch.inf).softmax(-1)
        z, _ = self.rnn(x.mT)
        return self.cell(last, (z[:, -1], (weight[..., None] * y).sum(1)))


@network(noise(1, 3, 24, 24))
class YoloHead(nn.Module):
    """Grids, strides and boxes, with the best by topk."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.ModuleList([nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 8, 3, 2, 1)])
        self.heads = nn.ModuleList([nn.Conv2d(8, 3 * 7, 1), nn.Conv2d(8, 3 * 7, 1)])

    def forward(self, x: torch.Tensor) -> Any:
        found = []
        for layer, head, stride in zip(self.stem, self.heads, (4, 8), strict=True):
            x = F.hardswish(layer(x))
            y = head(x)
            b, _, h, w = y.shape
            y = y.view(b, 3, 7, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centre = (y[..., :2] * 2 - 0.5 + torch.stack([gx, gy], -1)) * stride
            found.append(torch.cat([centre, (y[..., 2:4] * 2) ** 2 * 8, y[..., 4:]], -1).flatten(1, 3))
        boxes = torch.cat(found, 1)
        score, kind = (boxes[..., 4:5] * boxes[..., 5:]).max(-1)
        best = score.topk(10, -1)
        return best.values, boxes.gather(1, best.indices[..., None].expand(-1, -1, 7)), kind.gather(1, best.indices)


@network(noise(1, 3, 17, 17))
class StyleLayers(nn.Module):
    """Reflection pads, blur pools, pixel unshuffle, local response and group norms, Mish, GLU, adaptive pools."""

    def __init__(self) -> None:
        super().__init__()
        self.pad, self.replicate = nn.ReflectionPad2d((1, 2, 2, 1)), nn.ReplicationPad2d(1)
        self.conv, self.norm = nn.Conv2d(12, 8, 3, padding=1, padding_mode="circular"), nn.LocalResponseNorm(3)
        self.pool, self.adapt = nn.LPPool2d(2, 3, 2), nn.AdaptiveAvgPool2d((3, None))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.conv(F.pixel_unshuffle(self.pad(x), 2))
        a = self.norm(F.mish(F.glu(x, 1)))
        return (
            self.adapt(a),
            self.pool(self.replicate(x.abs())),
            F.softsign(x).std((2, 3)),
            torch.logcumsumexp(x[0, 0], -1),
            F.normalize(x, dim=1),
            F.cosine_similarity(x[:, :4], x[:, 4:], 1),
        )


@network(whole(30, 2, 10))
class RelativeAttentionXl(nn.Module):
    """Relative shift of Transformer-XL, alibi, and a local window mask by unfold."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.rel = nn.Embedding(30, 8), nn.Linear(8, 24), nn.Parameter(torch.randn(19, 4))

    def forward(self, ids: torch.Tensor) -> Any:
        q, k, v = (t.view(2, 10, 2, 4).transpose(1, 2) for t in self.qkv(self.words(ids)).chunk(3, -1))
        r = q @ self.rel.mT
        r = F.pad(r, (1, 0)).view(2, 2, 20, 10)[:, :, 1:].reshape(2, 2, 10, 19)[..., :10]
        alibi = -(torch.arange(10)[:, None] - torch.arange(10)).abs() * torch.tensor([0.5, 0.25]).view(2, 1, 1)
        mask = ids.ne(3)[:, None, None] & torch.ones(10, 10).tril().bool()
        weight = ((q @ k.mT + r) / 2 + alibi).masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1)
        near = F.pad(v, (0, 0, 2, 0)).unfold(2, 3, 1).mean(-1)
        return weight @ v + near, weight.roll((1, -1), (2, 3)), weight.flip(-1)


@network(noise(3, 10), noise(4, 10))
class Statistics(nn.Module):
    """Quantiles, histograms, covariance, distances and rankings, as scoring layers have."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        order = x.argsort(-1, descending=True)
        centred = x - x.mean(-1, keepdim=True)
        return (
            x.quantile(0.3, -1),
            torch.cdist(x, y),
            order.argsort(-1),
            centred @ centred.T / 9,
            x.var(-1),
            x.sort(-1).values.diff(dim=-1),
            F.one_hot(order[0], 12).sum(0),
            x.logsumexp(-1),
            torch.linalg.vector_norm(x, 3, -1),
            x.clamp(min=0).cumprod(-1),
            x.median(-1).values,
            torch.triu(centred.T @ x, 1),
        )


@network(noise(1, 4, 4))
class SmallLinearAlgebra(nn.Module):
    """Inverse, determinant and Cholesky factor of small matrices."""

    def forward(self, x: torch.Tensor) -> Any:
        a = x @ x.mT + 2 * torch.eye(4)
        return torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.cholesky(a)


@network(noise(2, 6, 8), whole(6, 2, 3))
class SetTransformer(nn.Module):
    """Inducing points, and tokens dropped by rank as token merging does."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, 3, 8))
        self.first, self.second = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> Any:
        h, weight = self.first(self.points.expand(2, -1, -1), x, x)
        y, _ = self.second(x, h, h, need_weights=False)
        metric = F.normalize(y, dim=-1)
        a, b = metric[:, ::2], metric[:, 1::2]
        top, place = (a @ b.mT).max(-1)
        edge = top.argsort(-1, descending=True)[..., None]
        source = y[:, ::2].gather(1, edge[:, :2].expand(-1, -1, 8))
        target = place[..., None].gather(1, edge[:, :2])
        merged = y[:, 1::2].scatter_reduce(1, target.expand(-1, -1, 8), source, "mean")
        return merged, weight, y[torch.arange(2)[:, None], chosen]
