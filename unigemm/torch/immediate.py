"""Products of plain tensors by one look-up: what eager mode asks for thousands of times a second.

A call is known by its tensors as PyTorch's functions take them, so that no transpose is made first
and nothing is asked twice. It has no gradient to record, and nothing watches it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ..arrays.libraries import library_of
from ..arrays.torch_tensors import check_held
from ..errors import UnsupportedProblem
from ..runtime.bind import Bound, store
from ..runtime.call import launch_with_workspace
from ..runtime.first_call import Given, bind_first
from ..runtime.fused_bind import bind_fused
from ..runtime.options import Options

__all__ = ["Known", "bound_product", "multiply_known"]

Known = tuple[Bound, int]  # a bound call, and how many bytes of what is added are read

_LIBRARY = library_of(torch.empty(0, device="cpu"), "a")
_read, _table = _LIBRARY.read, _LIBRARY.table
_current_device, _current_stream = _LIBRARY.current_device, _LIBRARY.current_stream


def multiply_known(
    what: Hashable,
    a: Tensor,
    b: Tensor,
    added: Tensor | None,
    make: Callable[[Any, Tensor, Tensor, Tensor | None], Known | None],
) -> Tensor | None:
    """Compute a product into a new tensor; None where `unigemm.matmul` has to be asked.

    Parameters
    ----------
    what
        What is computed of the tensors.
    a, b, added
        The operands, and what the epilogue reads.
    make
        Takes the arguments before it and binds the call, once for each kind of tensors. It returns
        None for a call that is none of these.

    Raises
    ------
    UnigemmError
        What `make` raises.
    """
    try:
        a_at, a_own = _read(a)
        b_at, b_own = _read(b)
        more: tuple[int, ...] = ()
        key: tuple[Any, ...] = (what, a_own, b_own, a_at & 15, b_at & 15)
        if added is not None:
            at, own = _read(added)
            more = (at,)
            key = (*key, own, at & 15)
        known = _table.get(key)
    except Exception:  # `unigemm.matmul` says what is wrong
        return None
    if known is None:
        known = make(what, a, b, added)
        if known is None or not known[0].kept:
            return None
        store(_table, key, known)
    bound, size = known
    launch, device = bound.launch, bound.device
    if launch is None or bound.scalar:
        return None
    try:
        check_held(a, "a", a_at, bound.reach[0])
        check_held(b, "b", b_at, bound.reach[1])
        if added is not None:
            check_held(added, "added", more[0], size)
    except UnsupportedProblem:  # `unigemm.matmul` says it, with the argument's own name
        return None
    stream = 0
    if device >= 0:
        if _current_device() != device:
            return None
        stream = _current_stream(device)
    result = bound.make()
    d_at = result.data_ptr()
    if d_at & 15:  # the kernel was chosen for an aligned result
        return None
    if bound.workspace is None:
        launch(a_at, b_at, d_at, 0, stream, *more)
    else:
        launch_with_workspace(_LIBRARY, bound, a_at, b_at, d_at, stream, more)
    return result


def bound_product(a: Tensor, b: Tensor, given: dict[str, Any], **options: Any) -> Known | None:
    """Bind a product of real tensors, with an epilogue of at most one array and no number.

    Parameters
    ----------
    a, b
        The operands of `unigemm.matmul`.
    given
        The arguments of its epilogue.
    options
        Its other options.
    """
    asked = Options(**options)
    if not given:
        return bind_first(_LIBRARY, a, b, None, asked, Given()), 0
    if a.dtype.is_complex or not a.shape or not a.shape[-1]:
        return None
    kept = bind_fused(_LIBRARY, a, b, None, (), given, asked, Given())
    return kept.bound, max((kept.spans[name][1] for name in kept.brought), default=0)
