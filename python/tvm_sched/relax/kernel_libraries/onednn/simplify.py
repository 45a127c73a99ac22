"""Write what importers take apart as one operator again, so that it can be claimed."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..rewrite import Rewriter, operation, shape_of


class Simplifier(Rewriter):
    """Sees through dropout and broadcasts to the same shape; turns a sum over a stack (ONNX's Sum) into additions."""

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            call = self.defined(value.tuple_value)
            if operation(call) == "nn.dropout":
                return self.value(call.args[0])
        name = operation(value)
        if name in ("broadcast_to", "reshape") and shape_of(value.args[0]) == shape_of(value) is not None:
            return self.value(value.args[0])
        if name == "sum" and not value.attrs.keepdims and [int(a) for a in value.attrs.axis or []] == [0]:
            parts = self._stacked(value.args[0])
            if parts:
                total = self.value(parts[0])
                for part in parts[1:]:
                    total = self.emit(relax.op.add(total, self.value(part)))
                return total
        return super().visit(variable, value)

    def _stacked(self, expr: Any) -> list[Any]:
        call = self.defined(expr)
        if operation(call) != "stack" or int(call.attrs.axis or 0) != 0:
            return []
        parts = self.resolve(call.args[0])
        if isinstance(parts, relax.Var):
            parts = self.definitions.get(parts)
        return list(parts.fields) if isinstance(parts, relax.Tuple) else []
