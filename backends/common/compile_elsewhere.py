"""Compiling in a new interpreter: for a process that was forked in the middle of a compile.

A kernel language keeps its state in globals. If another thread compiles during a fork, the child
has that state half changed, and then makes other code or waits for ever; both were seen.
"""

from __future__ import annotations

from contextlib import closing

from unigemm.cache.artifact import Artifact
from unigemm.errors import CompilationError
from unigemm.planning.compile_process import CompileProcess
from unigemm.planning.plan import Plan

__all__ = ["compile_elsewhere"]


def compile_elsewhere(plan: Plan) -> Artifact:
    """Compile a plan's kernel in a new interpreter, with the paths of this one.

    Raises
    ------
    CompilationError
        With the new interpreter's own words.
    """
    with closing(CompileProcess()) as process:
        try:
            return process.compile(plan)
        except CompilationError as error:
            raise CompilationError(
                "this process was forked while another thread compiled, and the compile in a new "
                f"one failed: {error}; compile before the fork, or start processes with spawn"
            ) from error
