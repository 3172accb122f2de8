"""The inside of the call path, for tests: no other file of tests imports `unigemm.runtime`.

Tests call public functions. Here is what these neither do nor show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from unigemm import ArraySpec, Plan
from unigemm.arrays.library import Library
from unigemm.arrays.operands import Device
from unigemm.problem.canonical import Layout
from unigemm.problem.dtypes import DType
from unigemm.runtime import (
    bind,
    bound,
    call,
    converted_copies,
    loader,
    product_lists,
    rounding,
    torch_matmul,
)
from unigemm.runtime import compile_many as compiling
from unigemm.runtime import dump as dumping
from unigemm.runtime import rounding_kernels as kernels
from unigemm.runtime import warmup as warming
from unigemm.runtime import words as in_words
from unigemm.runtime.epilogue_arguments import TracedEpilogue, traced_epilogue
from unigemm.runtime.options import Options, intermediate
from unigemm.runtime.plan_call import plan_request
from unigemm.runtime.request import Request, known

# -- calls -----------------------------------------------------------------------------------------

#: Drop all plans and known calls; loaded kernels stay.
forget_calls = bind.replan
#: Drop all plans and loaded kernels; known calls stay.
forget_kernels = bind.forget
#: What a call requests, by the arguments of a call.
request = Request
#: What a call requests, by the parts that the front doors make of its arguments.
request_of_parts = Request.of
#: What a call can request, in order, and the defaults.
FIELDS, DEFAULTS = Request._fields, Request._field_defaults


def forget_all() -> None:
    """Drop plans, known calls and loaded kernels, as a new process has none."""
    forget_calls()
    forget_kernels()


def only_known_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call fail that is not known."""

    def fail(request: object) -> None:
        raise AssertionError("the call is not known")

    monkeypatch.setattr(call, "_first", fail)


def keep_calls(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let each library keep so many known calls."""
    monkeypatch.setattr(bound, "MAX_BOUND", count)


def known_by(library: Library, requested: Request) -> tuple[tuple[str, ...], Any, list[int]]:
    """Return the names in the key of a call, the arrays, and their addresses."""
    key, arrays, addresses, _ = known(library, *requested.parts[:3])
    return key[2], arrays, addresses  # type: ignore[index]


def copies_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of mixed types be those of copies in one type."""
    monkeypatch.setattr(converted_copies, "_pays", lambda *product: True)


def torch_multiplies_integers(monkeypatch: pytest.MonkeyPatch, is_able: bool) -> None:
    """Say whether the processor has the instructions by which PyTorch multiplies exactly."""
    monkeypatch.setattr(torch_matmul, "_has_instructions", lambda kind: is_able)


def epilogue_arguments(**options: Any) -> dict[str, Any]:
    """Return what an epilogue is traced from, of a call's options."""
    return Request(None, None, **options).arguments()


def trace(
    arguments: Mapping[str, Any], a: Layout, b: Layout, see: Callable[[Any, str], Any],
    dtype: DType | None = None, **where: bool,
) -> TracedEpilogue:  # fmt: skip
    """Trace an epilogue of the product of two layouts; `see` returns each array's layout."""
    return traced_epilogue(arguments, a, b, None, see, Options(dtype=dtype), **where)


# -- kernels ---------------------------------------------------------------------------------------

#: Compile plans in so many processes; yield each kernel's plan, and its entry or the error.
compile_many = compiling.compile_many
#: What plans of one kernel have in common.
kernel_name = compiling.kernel_name
#: The rounding kernels that a plan's product needs behind its own.
second_passes_of = kernels.second_passes_of
#: Write a plan and its kernel's files where UNIGEMM_DUMP says.
dump = dumping.dump
#: The entry of a plan's kernel in the cache, also of a plan that no backend offers.
kernel_entry = loader.kernel_entry
#: Load a backend's kernel of a plan through the cache.
load = loader._load
#: The bound kernel of a plan, for a product on a device.
launcher = loader._launcher


def compile_in(monkeypatch: pytest.MonkeyPatch, process: Callable[[], Any]) -> None:
    """Compile in what a function returns, which poses as a process."""
    monkeypatch.setattr(compiling, "CompileProcess", process)


def compile_roundings(monkeypatch: pytest.MonkeyPatch, made: Callable[[Any], Any]) -> None:
    """Compile rounding kernels by a function."""
    monkeypatch.setattr(kernels.RoundingKernel, "compiled", made)


def load_by(monkeypatch: pytest.MonkeyPatch, function: Callable[[Plan], object]) -> None:
    """Load kernels by a function of their plans."""
    monkeypatch.setattr(loader, "_load", lambda backend, plan, device: function(plan))


def digest_of(plan: Plan) -> str:
    """Return the digest by which a call looks up the kernel of its plan."""
    return loader._digest(plan.backend, plan.problem, plan.config, plan.target)


def is_recording() -> bool:
    """Return whether the kernels that calls need are noted."""
    return bool(loader.RECORDERS)


def round_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host round the arrays of any device."""
    monkeypatch.setattr(rounding, "_on_device", lambda *given: rounding._on_host(*given[:-1]))


def rounding_kinds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what says by which kernel a call rounds its product; nothing is launched."""
    kinds: list[Any] = []
    monkeypatch.setattr(rounding, "_kernel", lambda _, kind, device: kinds.append(kind))

    def kind_of(plan: Plan, a: DType, d: Layout, scales: Layout) -> Any:
        sharing: Any = plan.problem.quantized_by
        source = intermediate(a, d, sharing)
        assert source.dtype is plan.problem.d.dtype
        rounding.rounding_of(source, d, scales, sharing, Device("cuda", 0))
        return kinds.pop()

    return kind_of


# -- products in words -----------------------------------------------------------------------------

#: The operands of sizes, a type, a layout and a batch.
specs_of_words = in_words.specs
#: A plan of each kernel that `unigemm.warmup` compiles: of products, a target and epilogues.
plans_for = warming.plans_for
#: The words that a product may have.
WORDS = (*warming._SIZES, *warming._WORDS)


def take_products(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a list of products have so many lines."""
    monkeypatch.setattr(product_lists, "_MOST", count)


def scales_of_words(of_a: str, of_b: str, a: ArraySpec, b: ArraySpec) -> dict[str, Any]:
    """Return the scales that words such as "row" and "128x128:float8_e8m0fnu" name."""
    return in_words.requested_specs(None, of_a, of_b, a, b)


def plan_of_words(target: str, *sizes: Any, tuned: bool = False, **options: Any) -> Plan:
    """Plan a product in words, as the command line has them."""
    requested = in_words.request_of(*sizes, **options)
    return plan_request(requested, target, scaled=False, keep=0, tuned=tuned)
