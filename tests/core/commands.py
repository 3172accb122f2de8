"""Commands in processes of their own, forked from one that has imported the command line.

A new interpreter takes a second of CPU to import it; what a command does is mostly done in less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

__all__ = ["forked"]


def forked(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess:
    """Run ``unigemm`` with some words, in an environment of its own."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"words": list(words), "environment": dict(environment), "cwd": os.getcwd()}
        server.stdin.write(json.dumps(request | {"out": str(out), "err": str(err)}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        texts = out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
    return subprocess.CompletedProcess(words, code, *texts)


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process that all commands are forked from; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _serve(requests: IO[str], answers: IO[str]) -> None:
    import unigemm.cli.main  # noqa: F401

    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _run(**request)
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()


def _run(words: list[str], environment: dict[str, str], cwd: str, out: str, err: str) -> None:
    from unigemm.cli.main import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate((os.devnull, out, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.argv = ["unigemm", *words]
    code = 0
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Commands have their own standard streams: what they print is no answer.
    _serve(sys.stdin, os.fdopen(os.dup(1), "w"))
