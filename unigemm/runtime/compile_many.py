"""Many kernels at once: each core compiles in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import CompilationError, UnigemmError
from ..planning.compile_process import CompileProcess
from ..planning.plan import Plan
from ..planning.registry import BUILTIN, backend_named
from ..planning.select import usable_backend
from ..planning.validation import checked, typed
from ..support.forks import Lock
from .loader import kernel_entry
from .rounding_kernels import RoundingKernel, second_passes_of

if TYPE_CHECKING:
    from ..cache import Entry
    from ..cache.artifact import Artifact, KernelKey

__all__ = [
    "Compiled",
    "CompiledKernel",
    "CompiledRounding",
    "compile_many",
    "compile_needed",
    "compiled",
    "cores",
    "kernel_key",
    "kernel_name",
]

#: Takes how many kernels are done, and how many there are.
Report = Callable[[int, int], None]


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kernel_key(plan: Plan | RoundingKernel) -> KernelKey | None:
    """Return the key of a plan's kernel, None for a plan that needs none."""
    if isinstance(plan, RoundingKernel):
        return plan.key
    backend = backend_named(plan.backend)
    return backend.key(plan) if backend.compiles else None


def kernel_name(plan: Plan | RoundingKernel) -> str:
    """Return what the cache knows a plan's kernel by, "" for a plan that needs none."""
    key = kernel_key(plan)
    return "" if key is None else key.digest


@dataclass(frozen=True)
class CompiledKernel:
    """A plan with its kernel.

    Attributes
    ----------
    plan
        The plan that was compiled.
    entry
        Its kernel in the cache; None for a plan that needs none, on the host.
    """

    plan: Plan
    entry: Entry | None

    @property
    def cached(self) -> bool:
        """Whether the kernel was there before, so that nothing was compiled."""
        return self.entry is None or self.entry.cached


@dataclass(frozen=True)
class CompiledRounding:
    """A kernel that rounds arrays to eight bits.

    Attributes
    ----------
    kernel
        What it rounds, and to what.
    entry
        It in the cache.
    """

    kernel: RoundingKernel
    entry: Entry

    @property
    def cached(self) -> bool:
        """Whether the kernel was there before, so that nothing was compiled."""
        return self.entry.cached


Compiled: TypeAlias = CompiledKernel | CompiledRounding


def compiled(plan: Plan | RoundingKernel, entry: Entry | None) -> Compiled:
    """Return a plan with its kernel."""
    if isinstance(plan, Plan):
        return CompiledKernel(plan, entry)
    assert entry is not None
    return CompiledRounding(plan, entry)


def compile_many(
    plans: Sequence[Plan], jobs: int | None = None, report: Report | None = None
) -> Generator[Made, None, None]:
    """Compile each kernel of some plans once, and yield what becomes of them as they are done.

    What the cache holds takes no process; nor does a single kernel, or one of a backend from
    outside, which other processes may not know: these are compiled here, one after the other. No
    process is left when the iterator is closed, or ends by an error.

    Parameters
    ----------
    plans
        Any plans; those of backends that compile nothing are left out.
    jobs
        How many processes compile at most; by default one for each core. 1 compiles here.
    report
        Called at first, and as kernels are done.

    Yields
    ------
    plan, entry
        One plan of each kernel, with its entry in the cache or the reason why there is none.
    """
    todo = _todo(plans)
    say = report or (lambda done, of: None)
    say(0, len(todo))
    with closing(_each(todo, jobs)) as made:
        for done, (plan, entry) in enumerate(made, 1):
            say(done, len(todo))
            yield plan, entry


def compile_needed(
    needed: Sequence[Plan | RoundingKernel], report: Report | None = None
) -> Generator[tuple[Plan | RoundingKernel, Entry | UnigemmError], None, None]:
    """Compile what a program needs, and yield what becomes of it; see `compile_many`.

    Kernels that round arrays come last, one after the other: they are few.
    """
    apart = [each for each in needed if isinstance(each, RoundingKernel)]
    done = of = 0

    def say(now: int, count: int) -> None:
        nonlocal done, of
        done, of = now, count + len(apart)
        if report is not None:
            report(done, of)

    yield from compile_many([each for each in needed if isinstance(each, Plan)], report=say)
    for each in apart:
        try:
            yield each, each.entry()
        except UnigemmError as error:
            yield each, error
        say(done + 1, of - len(apart))


#: Plans of one kernel, one for each choice of second passes behind it.
OfOne = tuple[Plan, ...]
#: These, and what their kernel is: its entry in the cache, why there is none, or None until it and
#: all second passes are compiled.
Todo = tuple[OfOne, "Entry | UnigemmError | None"]
Made = tuple[Plan, "Entry | UnigemmError"]


def _todo(plans: Sequence[Plan]) -> list[Todo]:
    found: dict[KernelKey, dict[tuple[KernelKey, ...], Plan]] = {}
    failed: dict[int, Todo] = {}
    for plan in plans:
        try:
            plan = checked(typed(plan))
            backend = usable_backend(plan.backend)
            if not backend.compiles:
                continue
            behind = tuple(each.key for each in second_passes_of(plan))
            found.setdefault(backend.key(plan), {}).setdefault(behind, plan)
        except UnigemmError as error:
            failed[id(plan)] = (plan,), error
    kept = [(tuple(of_one.values()), _kept(key, of_one)) for key, of_one in found.items()]
    return [*failed.values(), *kept]


def _kept(key: KernelKey, behind: Iterable[tuple[KernelKey, ...]]) -> Entry | UnigemmError | None:
    """Return a kernel in the cache; None where it, or a second pass behind it, is not there."""
    from ..cache import default_cache

    try:
        if any(default_cache().get(each) is None for each in chain.from_iterable(behind)):
            return None
        return default_cache().get(key)
    except UnigemmError as error:
        return error


def _each(todo: Sequence[Todo], jobs: int | None) -> Generator[Made, None, None]:
    missing = [plans for plans, entry in todo if entry is None]
    apart = [plans for plans in missing if plans[0].backend in BUILTIN]
    count = min(len(apart), jobs or cores())
    if count < 2:
        apart = []
    yield from ((plans[0], entry) for plans, entry in todo if entry is not None)
    yield from ((plans[0], _entry(plans)) for plans in missing if plans not in apart)
    if apart:
        yield from _side_by_side(apart, count)


def _entry(plans: OfOne, compile: Callable[[Plan], Artifact] | None = None) -> Entry | UnigemmError:
    """Compile the kernel of some plans and all their second passes; return the former's entry."""
    made: list[Entry | UnigemmError] = []
    for plan in plans:
        try:
            found = kernel_entry(plan, compile=compile)
        except UnigemmError as error:
            made.append(error)
        else:
            assert found is not None
            made.append(found)
    return next((each for each in made if isinstance(each, UnigemmError)), made[0])


class _Worker:
    """A thread with a process, which begins with the first kernel that the cache lacks."""

    def __init__(self, todo: SimpleQueue[OfOne], done: SimpleQueue[Any]) -> None:
        self._process: CompileProcess | None = None
        self._lock = Lock()
        self._stopped = False
        # Where another process compiles the same kernel it waits, and nobody waits for it.
        self._thread = Thread(target=self._work, args=(todo, done), daemon=True)
        self._thread.start()

    def _work(self, todo: SimpleQueue[OfOne], done: SimpleQueue[Any]) -> None:
        while not self._stopped:
            try:
                plans = todo.get_nowait()
            except Empty:
                break
            try:
                done.put((plans[0], _entry(plans, self._compile)))
            except BaseException as error:
                done.put((plans[0], error))
        self.stop()

    def _compile(self, plan: Plan) -> Artifact:
        with self._lock:
            if self._stopped:
                raise CompilationError("it was not compiled: this was interrupted")
            process = self._process = self._process or CompileProcess()
        try:
            return process.compile(plan)
        except CompilationError:
            with self._lock:
                if not process.lives:
                    self._process = None  # the next kernel gets another one
            raise

    def stop(self) -> None:
        """Compile nothing more; what is being compiled is given up."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.close()


def _side_by_side(missing: Sequence[OfOne], count: int) -> Iterator[Made]:
    todo: SimpleQueue[OfOne] = SimpleQueue()
    done: SimpleQueue[Any] = SimpleQueue()
    for plans in missing:
        todo.put(plans)
    workers = list[_Worker]()
    try:
        workers += (_Worker(todo, done) for _ in range(count))
        for _ in missing:
            plan, entry = done.get()
            if isinstance(entry, BaseException) and not isinstance(entry, UnigemmError):
                raise entry
            yield plan, entry
    finally:
        for worker in workers:
            worker.stop()
