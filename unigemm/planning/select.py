"""The planner over all backends: tuned plans first, then the cost model's pick."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..arrays.operands import Device
from ..errors import BackendUnavailable, DeviceMismatch, TuningWarning, UnsupportedProblem
from ..problem.canonical import Gemm
from ..problem.problem import Extents, Problem
from ..support.log import LOG
from . import tuned_plans as tuning
from .backend import Backend
from .batch_invariance import invariant_extents, with_extents
from .calibration import Calibration
from .calibrations import calibrated_target
from .compile_command import compile_command
from .plan import Plan
from .planner import KEPT, choose
from .prediction import Rejection
from .registry import backend_named, backend_names, compiler_missing_of, missing_of
from .size_buckets import resized, size_classes
from .target import CPU, Target

if TYPE_CHECKING:
    from .tuned_plans import Tuned

__all__ = ["kernel_missing", "plan_gemm", "target_of", "usable_backend"]


def target_of(device: Device) -> Target:
    """Return what kernels for a device are planned for."""
    return CPU if device.kind == "cpu" else calibrated_target(device.index)


def usable_backend(name: str) -> Backend:
    """Return a backend that can be used here.

    Raises
    ------
    BackendUnavailable
        Something is missing: what it is and how to get it.
    """
    backend = backend_named(name)
    missing = missing_of(backend)
    if missing is not None:
        raise BackendUnavailable(f"backend {name!r} cannot be used here: {missing}")
    return backend


def plan_gemm(
    gemm: Gemm,
    target: Target,
    backend: str = "auto",
    *,
    usable: bool,
    keep: int = KEPT,
    tuned: bool = True,
) -> Plan:
    """Plan a product.

    Parameters
    ----------
    gemm, target
        What, and for what.
    backend
        A backend's name, or "auto" for the best of all.
    usable
        Leave out backends that cannot be used here; a named one then raises.
    keep
        How many of the candidates that lost the plan remembers.
    tuned
        Take what `unigemm.autotune` has found, where it has; it measures one M, so that a
        batch-invariant product takes nothing from it.

    Raises
    ------
    UnsupportedProblem
        No backend takes it.
    DeviceMismatch
        The named backend is not for such a device.
    BackendUnavailable
        The named backend cannot be used here.
    """
    measured = None
    if tuned and not gemm.problem.batch_invariant:
        measured = tuning.lookup(gemm.problem, gemm.extents, target, backend)
    failed = _failed.get((gemm.problem, target), {}) if usable and backend == "auto" else {}
    if measured is not None and measured.plan.backend in failed:
        measured = None
    found = None if measured is None else _tuned(measured, usable)
    if found is None:
        return _modelled(gemm, target, backend, usable, keep)
    if not keep:
        return found
    model = _modelled(gemm, target, backend, usable, keep)
    lost = [
        x
        for x in (model.as_alternative, *model.alternatives)
        if (x.backend, x.config) != (found.backend, found.config)
    ]
    return replace(found, alternatives=tuple(lost[:keep]), rejected=model.rejected)


def _tuned(found: Tuned, usable: bool) -> Plan | None:
    """Return the plan that was measured; None where that says nothing (any more)."""
    try:
        chosen = (usable_backend if usable else backend_named)(found.plan.backend)
    except BackendUnavailable:
        return None
    if chosen.compiles and chosen.key(found.plan).source != found.source:
        warnings.warn(
            f"{found.plan.backend} has changed since {found.plan.extents} was tuned on "
            f"{found.plan.target}; tune it again",
            TuningWarning,
            stacklevel=2,
        )
        return None
    return None if usable and _unavailable_reason(found.plan) is not None else found.plan


def _modelled(gemm: Gemm, target: Target, backend: str, usable: bool, keep: int) -> Plan:
    """Plan a product by the model; see `plan_gemm`."""
    failed = _failed.get((gemm.problem, target), {}) if usable and backend == "auto" else {}
    dropped = tuple(failed.items())
    first: Plan | None = None
    while True:
        of = target.calibration
        try:
            plan = _planner(gemm.problem, target, backend, usable, keep, dropped, of)(gemm.extents)
        except UnsupportedProblem:
            if first is None:
                raise
            raise kernel_missing(first) from None
        reason = _unavailable_reason(plan) if usable and backend == "auto" else None
        if reason is None:
            return plan
        first = first or plan
        LOG.info("left out %s: %s", plan.backend, reason)
        dropped = (*dropped, (plan.backend, reason))


@lru_cache(maxsize=128)
def _planner(
    problem: Problem,
    target: Target,
    backend: str,
    usable: bool,
    keep: int,
    dropped: tuple[tuple[str, str], ...],
    of: Calibration | None,
) -> Callable[[Extents], Plan]:
    """Return what plans the products of a class, and remembers its plans.

    So a product of sizes that are new takes one look-up by all of the class, and few by sizes.
    Targets that differ in their calibration `of` alone are equal.
    """
    named = None if backend == "auto" else _named(backend, target, usable)
    offered, missing = _competitors(usable, target) if named is None else ((named,), ())
    unasked = () if named is None else _not_requested(backend)
    reasons = dict((*missing, *dropped))
    backends = tuple(each for each in offered if each.name not in reasons)
    on_gpu, class_of = target.is_gpu, size_classes(problem)

    @lru_cache(maxsize=1024)
    def planned(extents: Extents) -> Plan:
        if on_gpu and (sizes := class_of(extents)) is not extents:
            found = of_class(sizes, extents)
            if found is not None:
                return found
        if problem.batch_invariant and extents != invariant_extents(extents):
            return with_extents(planned(invariant_extents(extents)), extents, backend_named)
        plan = choose(problem, extents, target, backends, missing=reasons, keep=keep)
        return replace(plan, rejected=(*plan.rejected, *unasked)) if unasked else plan

    def of_class(sizes: Extents, extents: Extents) -> Plan | None:
        """Return what is planned for a class of sizes, for some; None if it is not for them."""
        try:
            plan = planned(sizes)
        except UnsupportedProblem:
            return None  # too large, perhaps, which the product itself is not
        return resized(plan, extents, backend_named)

    return planned


def _named(name: str, target: Target, usable: bool) -> Backend:
    """Return the backend that a caller requests.

    Raises
    ------
    DeviceMismatch
        It is not for such a device.
    BackendUnavailable
        It cannot be used here.
    """
    backend = backend_named(name)
    if backend.compiles and not target.is_gpu:
        raise DeviceMismatch(
            f"backend {name!r} runs on NVIDIA GPUs and the arrays are on the CPU; move them to "
            "a GPU (cupy.asarray, tensor.cuda()), or leave backend= out"
        )
    if target.is_gpu and not backend.compiles:
        raise DeviceMismatch(
            f"backend {name!r} runs on the CPU and the product is for {target}; use arrays in "
            "host memory, or leave backend= out"
        )
    return usable_backend(name) if usable else backend


def _not_requested(name: str) -> tuple[Rejection, ...]:
    """Return why all backends but a named one were left out."""
    others = (each for each in backend_names() if each != name)
    return tuple(Rejection(each, f"only {name} was requested") for each in others)


def _competitors(
    usable: bool, target: Target
) -> tuple[tuple[Backend, ...], tuple[tuple[str, str], ...]]:
    """Return all backends that take part, and the reasons of those that cannot."""
    offered = []
    missing = []
    for name in backend_names():
        try:
            backend = backend_named(name)
        except BackendUnavailable as error:
            missing.append((name, str(error)))
            continue
        reason = missing_of(backend) if usable and backend.compiles == target.is_gpu else None
        if reason is None:
            offered.append(backend)
        else:
            missing.append((name, reason))
    return tuple(offered), tuple(missing)


def _unavailable_reason(plan: Plan) -> str | None:
    """Say why a plan's kernel cannot be had here: neither compiled nor from the cache."""
    backend = backend_named(plan.backend)
    if not backend.compiles or (lacking := compiler_missing_of(backend)) is None:
        return None
    from ..cache import default_cache

    if default_cache().get(backend.key(plan)) is not None:
        return None
    return f"the cache does not hold its kernel, and it cannot be compiled here: {lacking}"


def kernel_missing(plan: Plan) -> BackendUnavailable:
    """Return the error of a kernel that the cache lacks and that cannot be compiled here."""
    backend = backend_named(plan.backend)

    def pick(gemm: Gemm, target: Target) -> Plan:
        return _modelled(gemm, target, plan.backend, usable=False, keep=0)

    command = compile_command(plan, pick)
    return BackendUnavailable(
        f"kernel {backend.key(plan).digest[:16]} of {plan.backend} for {plan.target.arch} "
        f"({plan.config}; {plan.extents} of {plan.problem}) is in no bundle and not in the cache, "
        f"and it cannot be compiled here: {compiler_missing_of(backend)}. Compile it elsewhere "
        + (f"({command})" if command else "(unigemm warmup, with what unigemm.record wrote)")
        + " and bring it in a bundle (unigemm cache export; UNIGEMM_CACHE_BUNDLES)"
    )


# What `auto` took and could not be had, with the reason: until `forget`.
_failed: dict[tuple[Problem, Target], dict[str, str]] = {}
