"""Errors go from process to process, whatever their constructors take."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from unigemm import errors
from unigemm.cache.manifest import Flaw
from unigemm.emulator.ptx.faults import Fault, KernelFault, PtxError, Site

ARGUMENTS = {
    PtxError: ("an odd token", 7),
    KernelFault: ("a store out of bounds", Site(3, (1, 2, 3), 4, 5), "st.global.u32 [%r1], %r2;"),
    Flaw: (Path("/cache/entry"), "is a link"),
    Fault: ("a bad address", 3),
}


def kinds(base=errors.UnigemmError):
    """Return a class of errors and all below it."""
    return [base, *(kind for below in base.__subclasses__() for kind in kinds(below))]


def made(kind):
    error = kind(*ARGUMENTS.get(kind, ("a sentence that ends with what would work",)))
    error.add_note("a note")
    return error


def fail(kind):
    raise made(kind)


@pytest.mark.parametrize("kind", [*kinds(), Flaw, Fault], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_an_error_is_the_same_after_a_copy(kind, again):
    error = made(kind)
    got = again(error)
    assert type(got) is kind
    assert str(got) == str(error)
    assert {**vars(got), "__notes__": None} == {**vars(error), "__notes__": None}


def test_a_fault_of_the_emulator_reaches_the_parent_of_a_process_pool():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool, pytest.raises(KernelFault) as caught:
        pool.submit(fail, KernelFault).result()
    assert caught.value.site == Site(3, (1, 2, 3), 4, 5)
