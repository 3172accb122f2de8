"""How each ``python -m bench.*`` starts: what it cannot do is one sentence, not a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from unigemm.errors import BackendUnavailable, UnigemmError
from unigemm.planning.target import device_count


def command(main: Callable[[], None]) -> None:
    """Run a command and exit: with 2 and one sentence where it cannot do what is requested."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as behind `head`
        _discard_output()
        sys.exit(141)  # 128 + SIGPIPE
    except UnigemmError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else ""))


def require_device() -> None:
    """Check that there is a GPU to measure on.

    Raises
    ------
    BackendUnavailable
        There is none.
    """
    if not device_count():
        raise BackendUnavailable("measuring needs a CUDA device; there is none here")


def require_torch() -> None:
    """Check that PyTorch, which this measures against, is installed.

    Raises
    ------
    BackendUnavailable
        It is not.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable("this is measured beside PyTorch, which is not here") from error


def _discard_output() -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(sentence: str) -> None:
    print(f"{_name()}: {sentence}", file=sys.stderr)
    sys.exit(2)


def _name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else "bench"
