"""Kernels before they are needed: what a program requested, and compiling all of that at once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import (
    BackendUnavailable,
    CacheError,
    CacheWarning,
    UnigemmError,
    UnsupportedProblem,
)
from ..planning.plan import Plan
from ..planning.select import plan_gemm
from ..planning.size_buckets import size_classes
from ..planning.target import Target, check_target, named_target
from ..problem.canonical import Gemm
from ..problem.problem import Extents
from ..support.arguments import file_path, shown, whole_number
from ..support.forks import Lock
from .bind import replan
from .compile_many import Compiled, compile_needed, compiled, kernel_name
from .loader import RECORDERS
from .plan_call import plan_request
from .product_lists import check_words, lines_of
from .rounding_kernels import RoundingKernel, second_passes_of
from .words import request_of

if TYPE_CHECKING:
    from ..cache import Entry
    from .request import Request

__all__ = ["Spec", "planned_calls", "plans_for", "record", "warmup"]

#: A product: a plan, or a mapping of what a line of a file holds (see `unigemm.warmup`).
Spec: TypeAlias = "Plan | RoundingKernel | Mapping[str, Any]"

_SIZES = ("m", "n", "k")
#: What a product in words may hold besides its sizes and its dtype.
_WORDS = ("dtype", "out_dtype", "layout", "batch", "epilogue", "groups", "along", "scale_a",
          "scale_b", "quantize_out", "backend", "precision", "deterministic",
          "batch_invariant")  # fmt: skip
_MOST_ROWS = 1 << 20


@contextmanager
def record(
    file: str | os.PathLike[str] | None = None,
) -> Iterator[list[Plan | RoundingKernel]]:
    """Note which kernels products, and `quantize`, need in a block, in all threads.

    Products in host memory need none. Calls of a kind that was made before the block are planned
    again, so that they are noted, too; a program that JAX compiled before is not.

    Parameters
    ----------
    file
        A file for the products, one line of JSON for each kernel, which `unigemm.warmup`,
        ``unigemm warmup FILE`` and ``unigemm cache export --from FILE`` read. It is begun anew, and
        a line is there as soon as the kernel is needed. Products go on where a line cannot be
        written, as on a full disk; a CacheWarning says so at the end.

    Yields
    ------
    list
        A plan of each kernel, in the order in which they were needed. One that rounds arrays to
        eight bits is a `RoundingKernel` instead.

    Raises
    ------
    CacheError
        The file cannot be begun: there is no such folder, say.

    Examples
    --------
    >>> with unigemm.record("products.jsonl"):
    ...     model(batch)
    """
    path = file_path(file, "file")
    plans: list[Plan | RoundingKernel] = []
    seen: set[object] = set()
    lost: list[OSError] = []
    lock = Lock()

    def note(plan: Plan | RoundingKernel) -> None:
        with lock:
            if _identity(plan) in seen:
                return
            seen.add(_identity(plan))
            short = plan
            if isinstance(plan, Plan):
                short = replace(plan, alternatives=(), rejected=())
            plans.append(short)
            if path is not None and not lost:
                try:
                    with open(path, "a", encoding="utf-8") as lines:
                        lines.write(f"{short.to_json()}\n")
                except OSError as error:  # the product does not need the line
                    lost.append(error)

    if path is not None:
        try:
            path.write_text("")
        except OSError as error:
            raise CacheError(
                f"{path} cannot be written ({error}); name a file in a folder that is there"
            ) from error
    RECORDERS.append(note)
    replan()
    try:
        yield plans
    finally:
        RECORDERS.remove(note)
        if path is not None and lost:
            _write_again(path, plans)


def _write_again(path: Path, plans: Sequence[Plan | RoundingKernel]) -> None:
    """Write a file anew of which lines could not be written, or warn that it lacks some."""
    try:
        path.write_text("".join(f"{each.to_json()}\n" for each in plans), encoding="utf-8")
    except OSError as error:
        warnings.warn(
            f"{path} lacks products that were recorded ({error}); free space and record them "
            "again, or pass the list that record gives to unigemm.warmup",
            CacheWarning,
            stacklevel=4,
        )


def warmup(
    specs: str | os.PathLike[str] | Iterable[Spec],
    *,
    target: str | Target | Sequence[str | Target] | None = None,
    epilogues: Iterable[str | None] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> list[Compiled]:
    """Plan a list of products, and compile the kernels that the cache lacks side by side.

    Parameters
    ----------
    specs
        Products, or the name of a file with one of them in each line, as JSON. A product is what
        `record` writes, or a mapping: m, n, k and dtype, and if need be out_dtype, layout,
        batch, epilogue, groups, along, scale_a, scale_b, quantize_out, backend, precision,
        deterministic and batch_invariant, all as the options of ``unigemm compile``. m may be a
        pair, the first and the last of a range: of this every size class is planned, and few of
        them differ in their kernel.
    target
        For what to plan, as in `unigemm.plan`, or several. By default plans are taken as they are,
        and others are for this machine. For another target than theirs, plans are made anew.
    epilogues
        Words such as "bias,gelu_tanh", and None or "" for no epilogue: each product in words that
        names no epilogue is planned with each of these.
    report
        Called with how many kernels are done, and how many there are.

    Returns
    -------
    list of CompiledKernel
        Each kernel once; one that rounds arrays is a `CompiledRounding`.

    Raises
    ------
    UnsupportedProblem
        A product cannot be planned, or says so in words that are not known. Nothing is compiled.
    CompilationError, BackendUnavailable
        A kernel cannot be compiled, or nothing can here. All others are in the cache then.

    Examples
    --------
    >>> layer = {"m": [1, 64], "n": 4096, "k": 4096, "dtype": "bfloat16", "layout": "nt"}
    >>> unigemm.warmup([layer], target="h100", epilogues=["", "bias"])
    """
    plans = plans_for(specs, target, epilogues)
    entries: dict[str, Entry] = {}
    failed: list[UnigemmError] = []
    for plan, entry in compile_needed(plans, report=report):
        if isinstance(entry, UnigemmError):
            failed.append(entry)
        else:
            entries[kernel_name(plan)] = entry
    if failed:
        raise failed[0]
    kernels = {kernel_name(plan): plan for plan in reversed(plans)}
    return [compiled(plan, entries.get(name)) for name, plan in reversed(kernels.items())]


def plans_for(
    specs: str | os.PathLike[str] | Iterable[Spec],
    target: str | Target | Sequence[str | Target] | None,
    epilogues: Iterable[str | None] | None,
) -> list[Plan | RoundingKernel]:
    """Return a plan of each kernel that products need; see `unigemm.warmup`.

    Raises
    ------
    UnigemmError
        A spec is none, or cannot be planned; says which.
    """
    found: dict[object, Plan | RoundingKernel] = {}
    for plan, _ in planned_calls(specs, target, epilogues):
        behind = second_passes_of(plan) if isinstance(plan, Plan) else ()
        for each in (plan, *behind):
            found.setdefault(_identity(each), each)
    return list(found.values())


def _identity(plan: Plan | RoundingKernel) -> object:
    """Return what plans of one kernel have in common."""
    if isinstance(plan, RoundingKernel):
        return plan.kind, plan.target.arch
    return plan.backend, plan.problem, plan.config, plan.target


def planned_calls(
    specs: str | os.PathLike[str] | Iterable[Spec],
    target: str | Target | Sequence[str | Target] | None,
    epilogues: Iterable[str | None] | None,
) -> Iterator[tuple[Plan | RoundingKernel, Request | None]]:
    """Yield a plan of each product, of a range for each size class, and its call in descriptions.

    The call is None of a plan that comes from a file.
    """
    targets = [target] if target is None or isinstance(target, str | Target) else list(target)
    resolved = [named_target(x) if isinstance(x, str) else x for x in targets]
    for each in resolved:
        if each is not None:
            check_target(each)
    wanted = [None] if epilogues is None else list(epilogues)
    for where, spec in _specs(specs):
        try:
            for each in resolved:
                yield from _plans(spec, each, wanted)
        except (UnsupportedProblem, BackendUnavailable) as error:
            kind = UnsupportedProblem if isinstance(error, ValueError) else BackendUnavailable
            raise kind(f"{where}: {error}") from error


def _specs(specs: Any) -> Iterator[tuple[str, Any]]:
    """Yield specs, and where each one is."""
    if not isinstance(specs, str | os.PathLike):
        if isinstance(specs, Plan | Mapping):
            raise UnsupportedProblem("specs is one product; pass a list of them")
        yield from ((f"specs[{i}]", spec) for i, spec in enumerate(specs))
        return
    yield from lines_of(os.fsdecode(specs))


def _plans(
    spec: Any, target: Target | None, epilogues: Sequence[str | None]
) -> Iterator[tuple[Plan | RoundingKernel, Request | None]]:
    """Plan a product, for another target than it was planned for if one is named."""
    if isinstance(spec, Mapping) and "problem" in spec:
        spec = Plan.from_dict(dict(spec))
    elif isinstance(spec, Mapping) and "quantize" in spec:
        spec = RoundingKernel.from_dict(spec)
    if isinstance(spec, RoundingKernel):
        yield (spec if target is None else replace(spec, target=target)), None
    elif isinstance(spec, Plan):
        yield (spec if target in (None, spec.target) else _planned_again(spec, target)), None
    elif isinstance(spec, Mapping):
        yield from _of_words(dict(spec), target, epilogues)
    else:
        raise UnsupportedProblem(
            f"{shown(spec)} is no product; pass a Plan, or a mapping such as "
            '{"m": [1, 64], "n": 4096, "k": 4096, "dtype": "bfloat16"}'
        )


def _planned_again(plan: Plan, target: Target | None) -> Plan:
    none = (0, 0, 0, 0)
    gemm = Gemm(plan.problem, plan.extents, False, (plan.extents.batch, 1), none, none, none)
    assert target is not None
    return plan_gemm(gemm, target, usable=False, keep=0)


def _of_words(
    spec: dict[str, Any], target: Target | None, epilogues: Sequence[str | None]
) -> Iterator[tuple[Plan, Request | None]]:
    unknown = spec.keys() - {*_SIZES, *_WORDS}
    missing = {*_SIZES, "dtype"} - spec.keys()
    if unknown or missing:
        raise UnsupportedProblem(
            f"it has {', '.join(map(shown, sorted(unknown))) or 'no ' + ', '.join(sorted(missing))}"
            f"; a product has {', '.join((*_SIZES, 'dtype'))}, and may have {', '.join(_WORDS[1:])}"
        )
    check_words(spec)
    first, last = _range(spec.pop("m"))
    n, k = (whole_number(spec.pop(name), name, 1) for name in ("n", "k"))
    batch = whole_number(spec.pop("batch", 1), "batch", 1)
    if spec.get("groups") is not None:
        spec["groups"] = whole_number(spec["groups"], "groups", 1)
    own = [spec.pop("epilogue")] if "epilogue" in spec else epilogues
    for epilogue in own:
        classes: set[Extents] = set()
        class_of: Callable[[Extents], Extents] | None = None
        for m in range(first, last + 1):
            sizes = Extents(m, n, k, batch)
            if class_of is not None and class_of(sizes) in classes:
                continue
            request = request_of(m, n, k, batch=batch, epilogue=epilogue, **spec)
            plan = plan_request(request, target, scaled=False, keep=0, tuned=True)
            if m > 1 and "groups" not in spec:  # a row alone may be another product
                class_of = size_classes(plan.problem)
                classes.add(class_of(sizes))
            yield plan, request


def _range(m: Any) -> tuple[int, int]:
    """Return the first and the last M."""
    ends = m if isinstance(m, list | tuple) else (m, m)
    if len(ends) != 2:
        raise UnsupportedProblem(f"m is {shown(m)}; give a number, or the first and the last")
    first, last = (whole_number(x, "m", 1) for x in ends)
    if not first <= last < first + _MOST_ROWS:
        raise UnsupportedProblem(
            f"m is {shown(m)}; give the first and the last M, and at most {_MOST_ROWS}"
        )
    return first, last
