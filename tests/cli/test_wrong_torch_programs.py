"""Commands with wrong torch programs and wrong options of them: the messages have the form of `test_wrong_models`."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import refused, run_command

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
nn, functional = torch.nn, torch.nn.functional
ONES = torch.ones(4, 4)
PICTURE = torch.ones(1, 1, 8, 8)


class Of(nn.Module):  # type: ignore[misc, name-defined]
    """A module of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def save(file: Path, module: Any, *inputs: Any, **more: Any) -> None:
    made = module if isinstance(module, nn.Module) else Of(module)
    torch.export.save(torch.export.export(made, inputs or (ONES,), **more), file)


def effect(x: Any) -> Any:
    torch.ops.aten._print("here")
    return x + 1


def endless(x: Any) -> Any:
    loop = torch._higher_order_ops.while_loop
    return loop(lambda y: y.sum() < 100, lambda y: (y * 2,), (x,))[0]


PROGRAMS: dict[str, tuple[Any, ...]] = {
    "dropout in training": (nn.Dropout(0.5).train(),),
    "rrelu in training": (lambda x: functional.rrelu(x, training=True),),
    "random numbers": (lambda x: x + torch.randn(4, 4),),
    "normal numbers": (lambda x: torch.normal(x, 1.0),),
    "poisson numbers": (torch.poisson,),
    "bernoulli": (torch.bernoulli,),
    "draws": (lambda x: torch.multinomial(x, 2),),
    "a permutation": (lambda x: x[torch.randperm(4)],),
    "gumbel": (functional.gumbel_softmax,),
    "random windows": (nn.FractionalMaxPool2d(2, output_size=3), PICTURE),
    "different elements": (torch.unique,),
    "a number of data": (lambda x, n: x * n.item(), ONES, torch.tensor(3)),
    "a result that is a number of data": (lambda x: x.sum().item(),),
    "parts of data": (lambda x, n: torch.split(x, n.tolist()), ONES, torch.tensor([1, 3])),
    "bounds of data": (lambda x: torch.histc(x, 4),),
    "bins of data": (torch.bincount, torch.ones(4, dtype=torch.int64)),
    "a loop of data": (endless,),
    "singular values": (lambda x: torch.linalg.svd(x)[1],),
    "an inverse": (torch.linalg.inv,),
    "eigenvalues": (lambda x: torch.linalg.eigh(x)[0],),
    "a determinant": (torch.linalg.det,),
    "cholesky": (torch.linalg.cholesky,),
    "equations": (lambda x: torch.linalg.solve(x, x),),
    "reflectors": (lambda x: torch.geqrf(x)[0],),
    "an exponential of a matrix": (torch.linalg.matrix_exp,),
    "a complex input": (torch.abs, torch.ones(4, dtype=torch.complex64)),
    "a complex result": (lambda x: torch.complex(x, x),),
    "a complex sine": (lambda x: torch.sin(torch.complex(x, x)).real,),
    "a number added to complex ones": (lambda x: (torch.complex(x, x) + 1).real,),
    "a long transform": (lambda x: torch.fft.fft(x).real, torch.ones(8192)),
    "antialiasing": (lambda x: functional.interpolate(x, (3, 3), mode="bilinear", antialias=True), PICTURE),
    "an effect": (effect,),
    "no result": (lambda x: None,),
    "a number as result": (lambda x: 3,),
    "a Bessel function": (torch.special.bessel_j0,),
    "two unknown operators": (lambda x: torch.special.bessel_j0(x) + torch.special.zeta(x, x),),
    "segments": (lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 2])),),
    "a sparse tensor": (lambda x: x.to_sparse().to_dense(),),
    "a type of 8 bits": (lambda x: x.float() + 1, ONES.to(torch.float8_e4m3fn)),
}


@pytest.mark.parametrize("case", PROGRAMS)
@pytest.mark.sampled(8)
def test_a_wrong_program(case: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.pt2"
    save(file, *PROGRAMS[case])
    message = problem(file, tmp_path)
    assert "wrong.pt2" in message or "model 'wrong'" in message


def problem(file: Path, folder: Path, *options: str) -> str:
    done = run_command("problem", file, "-t", "cpu2", "-o", folder / "p.json", *options)
    refused(done.status, done.stderr, list(folder.glob("p.json")))
    message = next(line for line in done.stderr.splitlines() if line.startswith("error: ") or "Invalid value" in line)
    for foreign in (r".py:", "Error:", "Exception", "site-packages", "torch frontend failed"):
        assert foreign not in message
    return message


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear layer with an open batch of 2 to 64."""
    file = tmp_path_factory.mktemp("right") / "right.pt2"
    save(file, nn.Linear(4, 3).eval(), ONES, dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    return file


def changed(file: Path, to: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Write the archive again with other contents of its members; None leaves one out."""
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(to, "w") as after:
        for name in before.namelist():
            content = change(name, before.read(name))
            if content is not None:
                after.writestr(name, content)


MEMBERS: dict[str, Callable[[str, bytes], bytes | None]] = {
    "no program": lambda name, content: None if name.endswith("model.json") else content,
    "no weights": lambda name, content: None if "weights/weight" in name else content,
    "no list of weights": lambda name, content: None if name.endswith("weights_config.json") else content,
    "weights too short": lambda name, content: content[:8] if "weights/weight" in name else content,
    "an empty program": lambda name, content: b"" if name.endswith("model.json") else content,
    "another program": lambda name, content: b"{}" if name.endswith("model.json") else content,
    "half a program": lambda name, content: content[: len(content) // 2] if name.endswith("model.json") else content,
    "an unknown operator": lambda name, content: content.replace(b"aten.linear", b"aten.linaer"),
    "another schema": lambda name, content: content.replace(b'"major":', b'"major": 9'),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMBERS)
@pytest.mark.sampled(4)
def test_a_wrong_archive(case: str, right: Path, tmp_path: Path) -> None:
    changed(right, tmp_path / "wrong.pt2", MEMBERS[case])
    assert "wrong.pt2" in problem(tmp_path / "wrong.pt2", tmp_path, "--shape", "input:4,4")


def test_a_damaged_program_without_parameters_lacks_none(tmp_path: Path) -> None:
    save(tmp_path / "right.pt2", lambda x: x + 1)
    changed(tmp_path / "right.pt2", tmp_path / "wrong.pt2", MEMBERS["half a program"])
    message = problem(tmp_path / "wrong.pt2", tmp_path)
    assert "wrong.pt2: not a readable torch.export program" in message
    assert "parameters" not in message


def other_file(case: str, right: Path, file: Path) -> None:
    match case:
        case "an empty file":
            file.write_bytes(b"")
        case "text":
            file.write_text("a linear layer")
        case "a truncated file":
            file.write_bytes(right.read_bytes()[:1000])
        case "a file without its directory":
            file.write_bytes(right.read_bytes()[:-100])
        case "a folder":
            file.mkdir()
        case "a state_dict":
            torch.save(nn.Linear(4, 3).state_dict(), file)
        case "a module":
            torch.save(nn.Linear(4, 3), file)
        case "TorchScript":
            torch.jit.save(torch.jit.trace(nn.Linear(4, 3), ONES), file)
        case "NumPy's arrays":
            np.savez(tmp := file.with_suffix(".npz"), x=np.ones(3))
            shutil.move(tmp, file)


@pytest.mark.parametrize("case", [
    "no file", "an empty file", "text", "a truncated file", "a file without its directory", "a folder", "a state_dict",
    "a module", "TorchScript", "NumPy's arrays",
])  # fmt: skip
@pytest.mark.sampled(5)
def test_another_file(case: str, right: Path, tmp_path: Path) -> None:
    other_file(case, right, tmp_path / "wrong.pt2")
    assert "wrong.pt2" in problem(tmp_path / "wrong.pt2", tmp_path)


OPTIONS = {
    "nothing for an open size": (),
    "an unknown input": ("--shape", "x:4,4"),
    "another rank": ("--shape", "input:4"),
    "another fixed size": ("--shape", "input:4,5"),
    "below the range": ("--shape", "input:1,4"),
    "above the range": ("--shape", "input:65,4"),
    "a size below 0": ("--shape", "input:-4,4"),
    "a size that is text": ("--shape", "input:four,4"),
    "an unknown symbol": ("--shape", "batch=4"),
    "no constant's input": ("--constant", "weight=1"),
    "a constant of another shape": ("--constant", "input=1,2,3"),
    "a constant of another rank": ("--constant", "input=[[[1]]]"),
    "a constant that is text": ("--constant", "input=many"),
    "a constant from a missing file": ("--constant", "input=@missing.npy"),
    "a shape and a constant": ("--shape", "input:4,4", "--constant", "input=1"),
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.sampled(8)
def test_a_wrong_option(case: str, right: Path, tmp_path: Path) -> None:
    problem(right, tmp_path, *OPTIONS[case])


@pytest.mark.slow
@pytest.mark.thorough
def test_wrong_inputs_of_a_run(right: Path, tmp_path: Path) -> None:
    built = tmp_path / "right.so"
    assert run_command("compile", right, "-t", "cpu1", "--shape", "input:4,4", "-o", built).status == 0
    for given in (
        np.ones((4, 4)),
        np.ones((4, 4), "int64"),
        np.ones((5, 4), "float32"),
        np.ones(4, "float32"),
        np.array("x"),
    ):
        np.save(tmp_path / "x.npy", given)
        done = run_command("run", built, "--repeat", "1", "--input", f"input={tmp_path / 'x.npy'}")
        refused(done.status, done.stderr, [])
    done = run_command("run", built, "--repeat", "1", "--input", f"x={tmp_path / 'x.npy'}")
    refused(done.status, done.stderr, [])


def test_the_right_program(right: Path, tmp_path: Path) -> None:
    """Else a command that refuses every program would pass the tests above."""
    done = run_command("problem", right, "-t", "cpu2", "--shape", "input:4,4", "-o", tmp_path / "p.json")
    assert (done.status, (tmp_path / "p.json").exists()) == (0, True), done.stderr
