"""A new interpreter that compiles: beside this process, or in its place.

Kernel languages keep their state in globals, so that one process compiles one kernel at a time. And
a process that was forked in the middle of a compile has that state half changed.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from typing import IO, Any

from .. import errors
from ..cache.artifact import Artifact
from ..cache.scratch import scratch_folder
from ..errors import CompilationError, UnigemmError
from .plan import Plan

__all__ = ["CompileProcess", "serve"]

_LENGTH = struct.Struct("<Q")
_SHOWN = 2000  # characters of what a process said last


class CompileProcess:
    """An interpreter that compiles the plans that it is sent, with the paths of this one.

    It does not run the caller's main module, and it ends with this process, however that ends. Its
    temporary files lie in a folder that goes with it. Not for several threads at once.
    """

    def __init__(self) -> None:
        path = [each for each in sys.path if isinstance(each, str)]  # imports pass over others
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; serve()"
        self._owner = os.getpid()
        with ExitStack() as made:
            self._said = made.enter_context(tempfile.TemporaryFile())
            folder = made.enter_context(scratch_folder())
            self._process = subprocess.Popen(
                [sys.executable or "python3", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={**os.environ, "TMPDIR": str(folder)},  # it is killed, and removes nothing
                start_new_session=True,  # ^C is for this process, which ends the other
            )
            self._made = made.pop_all()

    def compile(self, plan: Plan) -> Artifact:
        """Compile a plan's kernel, for a backend of unigemm itself.

        Raises
        ------
        UnigemmError
            What the backend raised there; a `CompilationError` where the process ended.
        """
        import msgspec

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, plan.to_json().encode())
            answer = _receive(self._process.stdout)
        except (OSError, ValueError):  # a pipe that is broken, or closed
            answer = None
        if answer is None:
            raise CompilationError(f"the process that compiled it has ended: {self._last_words()}")
        kind, content = msgspec.msgpack.decode(answer, type=tuple[str, msgspec.Raw])
        if not kind:
            return msgspec.msgpack.decode(content, type=Artifact)
        message = msgspec.msgpack.decode(content, type=str)
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, UnigemmError):
            raise known(message)
        raise CompilationError(f"{kind}: {message}")

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._owner != os.getpid():
            return  # a forked child, which would end its parent's
        if sys.platform != "win32" and self._process.poll() is None:
            with suppress(ProcessLookupError):  # its compilers as well: it leads their group
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._made):
            with suppress(OSError):  # what could not be sent
                file.close()  # type: ignore[union-attr]

    def _last_words(self) -> str:
        """Return how the process ended, and the last line that it printed."""
        code = self._process.wait()
        with suppress(ValueError):
            code = signal.Signals(-code).name  # type: ignore[assignment]
        try:
            self._said.seek(0, os.SEEK_END)
            self._said.seek(max(0, self._said.tell() - _SHOWN))
            said = self._said.read().decode(errors="replace").strip()
        except (OSError, ValueError):
            said = ""
        return f"{code} {said.rpartition(chr(10))[2]}".strip()


def serve() -> None:
    """Compile the plans that come through stdin until it ends, and answer through stdout."""
    requested, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print is no answer
    # tvm_ffi imports PyTorch wherever it is installed, which takes longer than a kernel and changes
    # nothing in it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    while (text := _receive(requested)) is not None:
        _send(answers, _answer(text))


def _answer(text: bytes) -> bytes:
    import msgspec

    from .registry import backend_named

    answer: Any
    try:
        plan = Plan.from_json(text)
        answer = "", backend_named(plan.backend).compile(plan)
    except Exception as error:  # the other process says what became of it
        answer = type(error).__name__, str(error)
    return msgspec.msgpack.encode(answer)


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def _receive(file: IO[bytes]) -> bytes | None:
    """Return the next message; None where there is none, or only a part of one."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = file.read(length)
    return data if len(data) == length else None
