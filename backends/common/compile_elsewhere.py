"""Compiling in a new interpreter: for a process that was forked in the middle of a compile.

A kernel language keeps its state in globals. If another thread compiles during a fork, the child
has that state half changed, and then makes other code or waits for ever; both were seen.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from unigemm.cache.artifact import Artifact
from unigemm.errors import CompilationError
from unigemm.planning.plan import Plan

__all__ = ["compile_elsewhere", "serve"]


def compile_elsewhere(plan: Plan) -> Artifact:
    """Compile a plan's kernel in a new interpreter, with the paths of this one.

    Raises
    ------
    CompilationError
        With the new interpreter's own words.
    """
    import msgspec

    with tempfile.TemporaryDirectory(prefix="unigemm-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(plan.to_json())
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        command = [sys.executable or "python3", "-c", code, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2]
            raise CompilationError(
                "this process was forked while another thread compiled, and the compile in a new "
                f"one failed: {said}; compile before the fork, or start processes with spawn"
            )
        return msgspec.msgpack.decode((folder / "artifact").read_bytes(), type=Artifact)


def serve() -> None:
    """Compile the plan of the folder that the command line names, and leave the artifact there."""
    import msgspec

    from unigemm.planning.registry import backend_named

    folder = Path(sys.argv[1])
    plan = Plan.from_json((folder / "plan.json").read_text())
    (folder / "artifact").write_bytes(
        msgspec.msgpack.encode(backend_named(plan.backend).compile(plan))
    )
