"""Scripts that are run as processes of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from functools import partial


def free_port():
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


#: A script takes some seconds. examples/jax_many_gpus.py has hung twice in some forty runs on two
#: cores, for a reason that is not known yet: such a run is ended, and tried once more.
_HANGS_S = 150


def output_of(path, *arguments):
    """Run a script, and return what it printed; its end must be a good one."""
    started = partial(
        subprocess.run,
        [sys.executable, "-W", "ignore", str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_HANGS_S,
    )
    try:
        done = started()
    except subprocess.TimeoutExpired:
        done = started()
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
