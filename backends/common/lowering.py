"""Steps of an epilogue as GPUs carry them out: with quick operations where results are short.

Results of 16 bits or fewer do not show errors of some units of float32's last place (in "~exp" and
"~div"), nor of 2**-15 of the value ("~ndtr"), nor one of 2**-11 in tanh ("~tanh"; PTX ISA,
tanh.approx.f32: its greatest relative error).
So a logistic function becomes one: 1 / (1 + exp(w)) = (1 - tanh(w / 2)) / 2, as cuBLASLt's and
CUTLASS's do. For x / (1 + exp(w)) the error is below 2**-12 of x: of the result where that is near
x, and of x where the result is nearly 0. Steps that a longer result needs stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from unigemm.epilogue import pruned
from unigemm.problem.dtypes import DType
from unigemm.problem.epilogue import OPERATIONS, Epilogue, Step

__all__ = ["HALF_LOG2_E", "NDTR_BELOW", "QUICK", "lowered"]

HALF_LOG2_E = -0.7213475204444817
#: A quick "ndtr" below 0 is exp2(x**2 * HALF_LOG2_E) R(u), with u = 2 / (1 + |x| / 4) - 1. Of R,
#: from the highest power down, for the least relative error up to 14.5: below 2**-15.
NDTR_BELOW = (
    -0.0003120550827588886, 0.008084856905043125, 0.03130015730857849,
    0.07181485742330551, 0.12432035058736801, 0.17038817703723907,
    0.09441157430410385
)  # fmt: skip
QUICK = ("exp", "tanh", "div", "ndtr")  # of which there is a quick one
_LONG = 4  # bytes


class _Steps:
    """The steps of a new epilogue, each once."""

    def __init__(self) -> None:
        self.found: dict[Step, int] = {}
        self.order: list[Step] = []

    def add(self, op: str, *of: int, value: str = "") -> int:
        step = Step(op, of, value)
        if step not in self.found:
            self.found[step] = len(self.order)
            self.order.append(step)
        return self.found[step]

    def constant(self, value: float) -> int:
        return self.add("constant", value=value.hex())

    def at(self, index: int) -> Step:
        return self.order[index]


def lowered(epilogue: Epilogue, result: DType) -> Epilogue:
    """Return an epilogue with quick operations, where D is a `result`."""
    ends = {epilogue.result: result}
    kinds = [x.matrix.dtype for x in (*epilogue.stored, *epilogue.totalled)]
    long = {end for end, kind in ends.items() if kind.itemsize >= _LONG}
    more = zip((*epilogue.stores, *epilogue.totals), kinds, strict=True)
    long |= {end for end, kind in more if kind.itemsize >= _LONG}
    exact = _before(epilogue, long)
    steps, indices = _Steps(), list[int]()
    for i, step in enumerate(epilogue.steps):
        of = step.of if step.op in ("array", "number") else tuple(indices[j] for j in step.of)
        if i in exact:
            indices.append(steps.add(step.op, *of, value=step.value))
        else:
            indices.append(_quick(steps, replace(step, of=of)))
    wanted = [epilogue.result, *epilogue.stores, *epilogue.totals]
    wanted += [] if epilogue.largest is None else [epilogue.largest]
    kept, at = pruned(tuple(steps.found), tuple(indices[end] for end in wanted))
    stores, bias_grads = len(epilogue.stores), len(epilogue.totals)
    return replace(
        epilogue,
        steps=kept,
        result=at[0],
        stores=at[1 : 1 + stores],
        totals=at[1 + stores : 1 + stores + bias_grads],
        largest=None if epilogue.largest is None else at[-1],
    )


def _before(epilogue: Epilogue, ends: set[int]) -> set[int]:
    """Return some steps and all that they are computed of."""
    found = set(ends)
    for i in reversed(range(len(epilogue.steps))):
        step = epilogue.steps[i]
        if i in found and (step.op in OPERATIONS or step.op in ("even", "odd")):
            found.update(step.of)
    return found


def _quick(steps: _Steps, step: Step) -> int:
    """Add what a step becomes where its result is short."""
    if step.op == "div":
        exponent = _logistic(steps, step.of[1])
        if exponent is not None:
            half = _half(steps, step.of[0])
            curve = steps.add("~tanh", _half(steps, exponent))
            return steps.add("sub", half, steps.add("mul", half, curve))
    name = f"~{step.op}" if step.op in QUICK else step.op
    return steps.add(name, *step.of, value=step.value)


def _logistic(steps: _Steps, divisor: int) -> int | None:
    """Return w where a divisor is 1 + exp(w)."""
    step = steps.at(divisor)
    if step.op != "add":
        return None
    for one, other in (step.of, step.of[::-1]):
        power = steps.at(other)
        if steps.at(one) == Step("constant", value=(1.0).hex()) and power.op == "~exp":
            return power.of[0]
    return None


def _half(steps: _Steps, index: int) -> int:
    """Add half of a value; factors that it has already are halved instead."""
    step = steps.at(index)
    if step.op == "neg":
        return steps.add("mul", steps.constant(-0.5), step.of[0])
    return _halved(steps, index) or steps.add("mul", steps.constant(0.5), index)


def _halved(steps: _Steps, index: int) -> int | None:
    """Add half of a value by halving constants in it; None where there are none."""
    step = steps.at(index)
    if step.op == "constant":
        return steps.constant(float.fromhex(step.value) / 2)
    if step.op == "mul":
        for first, second in (step.of, step.of[::-1]):
            half = _halved(steps, first)
            if half is not None:
                return steps.add("mul", half, second)
    if step.op in ("add", "sub"):
        left, right = (_halved(steps, each) for each in step.of)
        if left is not None and right is not None:
            return steps.add(step.op, left, right)
    return None
