"""Control flow of a kernel: basic blocks, where divergent paths meet again, and segments.

A segment is what a warp runs without giving way: it ends at a branch, at an instruction that may
wait, or where another segment begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .ptx import Instruction, Kernel, Symbol

__all__ = ["EXIT", "Flow", "Segment", "analyse", "block_starts", "successors"]

EXIT = -1  # the segment behind the last: paths that only meet at the end of the kernel

_ENDS = ("bra", "ret", "exit", "trap")
#: These may wait. Those of the second kind are tried again, so each begins a segment of its own.
_BARRIERS = ("bar", "bar.cta", "barrier", "barrier.cta")
_WAITS = (*(f"{b}.{form}" for b in _BARRIERS for form in ("sync", "red")), "barrier.cluster.wait")
_RETRIED = ("mbarrier.try_wait", "tcgen05.alloc")
_YIELDS = ("mbarrier.test_wait", "nanosleep")


@dataclass(frozen=True)
class Segment:
    """Instructions `first` to `last` (exclusive) of a kernel.

    Attributes
    ----------
    stop
        Whether the last of them decides what comes next.
    together
        The four warps of a warpgroup run it at once: it holds wgmma instructions.
    meet
        Segment where the paths of a divergent branch at its end meet again.
    """

    first: int
    last: int
    stop: bool
    together: bool
    meet: int = EXIT


@dataclass(frozen=True)
class Flow:
    """The segments of a kernel, and which one begins at an instruction."""

    segments: tuple[Segment, ...]
    at: dict[int, int]


def is_any(instruction: Instruction, names: tuple[str, ...]) -> bool:
    """Whether an opcode is one of `names`, with whatever modifiers behind."""
    return _begins(instruction.opcode, names)


@lru_cache(maxsize=8192)
def _begins(opcode: str, names: tuple[str, ...]) -> bool:
    return any(opcode == name or opcode.startswith(name + ".") for name in names)


def analyse(kernel: Kernel) -> Flow:
    """Cut a kernel into segments."""
    body = kernel.body
    starts = block_starts(kernel)
    meets = _meeting_points(kernel, starts)
    cuts = set(starts)
    together = set()
    inside = False  # of a run of wgmma instructions
    for i, instruction in enumerate(body):
        inside = inside and i not in cuts
        if instruction.opcode.startswith("wgmma.") and not inside:
            inside = True
            cuts.add(i)
            together.add(i)
        if is_any(instruction, _RETRIED):
            cuts.add(i)
        if is_any(instruction, (*_WAITS, *_RETRIED, *_YIELDS)):
            cuts.add(i + 1)
            inside = False
    firsts = sorted(cut for cut in cuts if cut < len(body))
    at = {first: number for number, first in enumerate(firsts)}
    ends = [*firsts[1:], len(body)]
    segments = []
    for first, last in zip(firsts, ends, strict=True):
        final = body[last - 1]
        stop = is_any(final, (*_ENDS, *_WAITS, *_RETRIED))
        meet = meets.get(last - 1, EXIT)
        segments.append(
            Segment(first, last, stop, first in together, at.get(meet, EXIT) if meet >= 0 else EXIT)
        )
    return Flow(tuple(segments), at)


def block_starts(kernel: Kernel) -> list[int]:
    """Return the first instructions of the basic blocks."""
    body = kernel.body
    starts = {0, *kernel.labels.values()}
    starts |= {i + 1 for i, found in enumerate(body) if is_any(found, _ENDS)}
    return sorted(start for start in starts if start < len(body))


def successors(kernel: Kernel, starts: list[int]) -> list[list[int]]:
    """Return the blocks that follow each block; the number of blocks stands for the exit."""
    body, count = kernel.body, len(starts)
    number = {start: i for i, start in enumerate(starts)}
    found = []
    for i in range(count):
        last = body[(starts[i + 1] if i + 1 < count else len(body)) - 1]
        follows = []
        if is_any(last, _ENDS):
            if is_any(last, ("bra",)):
                target = last.operands[0]
                assert isinstance(target, Symbol)
                follows.append(number.get(kernel.labels[target.name], count))
            else:
                follows.append(count)
            if last.predicate is not None:
                follows.append(i + 1)
        else:
            follows.append(i + 1)
        found.append(follows)
    return found


def _meeting_points(kernel: Kernel, starts: list[int]) -> dict[int, int]:
    """Return the first instruction of the immediate post-dominator, by a block's last one.

    Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.
    """
    follows = successors(kernel, starts)
    count = len(starts)
    before: list[list[int]] = [[] for _ in range(count + 1)]
    for i, nexts in enumerate(follows):
        for other in nexts:
            before[other].append(i)
    order: list[int] = []
    seen, stack = {count}, [(count, iter(before[count]))]
    while stack:
        node, rest = stack[-1]
        new = next((x for x in rest if x not in seen), None)
        if new is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(new)
            stack.append((new, iter(before[new])))
    rank = {node: i for i, node in enumerate(order)}  # the exit has the highest
    above = {count: count}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            meet = -1
            for other in follows[node]:
                if other in above:
                    meet = other if meet < 0 else _common(above, rank, other, meet)
            if above.get(node) != meet:
                above[node] = meet
                changed = True
    body_end = len(kernel.body)
    points = {}
    for i in range(count):
        last = (starts[i + 1] if i + 1 < count else body_end) - 1
        meet = above.get(i, count)
        points[last] = starts[meet] if meet < count else EXIT
    return points


def _common(above: dict[int, int], rank: dict[int, int], x: int, y: int) -> int:
    while x != y:
        while rank[x] < rank[y]:
            x = above[x]
        while rank[y] < rank[x]:
            y = above[y]
    return x
