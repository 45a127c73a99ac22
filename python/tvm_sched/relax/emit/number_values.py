"""Number the tensors that oneDNN's kernels hand to each other, so that each knows bounds of what it reads."""

from __future__ import annotations

import json
from collections import Counter

import tvm

from ...execution_plan import Calls
from ..lower.kernel_libraries import KERNELS, kernel_document


def number_values(mod: tvm.IRModule, calls: Calls) -> tvm.IRModule:
    """Return the module with the numbers of values (``docs/formats/kernels.md``) in the descriptions of oneDNN's kernels.

    A number stands for one tensor, so kernels that are called several times have none.

    Parameters
    ----------
    calls : Calls
        All calls of the plan that is emitted.
    """
    documents = dict(mod.attrs[KERNELS]) if mod.attrs and KERNELS in mod.attrs else {}
    times = Counter(call.function for call in calls.calls)
    alone = [call for call in calls.calls if call.function in documents and times[call.function] == 1]
    found = {call.function: call for call in alone if kernel_document(mod, call.function)[0] == "onednn"}
    made = Counter(name for call in calls.calls for name in call.outputs)
    read = {name for call in found.values() for name in call.inputs}
    outputs = (name for call in found.values() for name in call.outputs if name in read and made[name] == 1)
    numbers = {name: number for number, name in enumerate(outputs)}
    for function, call in found.items():
        content = json.loads(str(documents[function]))
        for operand, name in zip(content["kernel"]["operands"], (*call.inputs, *call.outputs), strict=True):
            if name in numbers:
                operand["value"] = numbers[name]
        documents[function] = json.dumps(content)
    return mod.with_attr(KERNELS, documents) if found else mod
