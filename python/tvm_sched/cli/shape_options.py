"""The options ``--shape`` and ``--constant``: shapes and values of a model's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..input_shapes import ShapeSet, parse_constants, parse_shapes

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:DIMS|SYMBOL=SIZE|BATCHxTOKENS",
        help="Shape of an input, e.g. data:1,3,224,224; size of a symbol that the model declares, e.g. batch=8; or, of a "
        "language model, e.g. 1x32. `compile` takes sets, 'data:{1,8},3,224,224' or 'batch={1,8}': an artifact with a plan "
        "for each combination. May be repeated.",
    ),
]


Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--constant",
        metavar="NAME=VALUE",
        help="Freeze an input, e.g. sr=16000, size=224,224, flag=true, mask='[[1,0]]' or table=file.npy. May be repeated.",
    ),
]


@dataclass(frozen=True)
class ShapeOptions:
    """Shapes and values of a model's inputs."""

    shape: Shapes = None
    constant: Constants = None

    def sets(self) -> list[ShapeSet]:
        """All shapes that are given."""
        return parse_shapes(self.shape)

    def constants(self) -> dict[str, Any]:
        """The values of frozen inputs."""
        return parse_constants(self.constant)
