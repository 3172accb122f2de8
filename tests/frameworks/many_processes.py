"""Scripts that are run as processes of their own."""

from __future__ import annotations

import socket
import subprocess
import sys


def free_port():
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def output_of(path, *arguments):
    """Run a script, and return what it printed; its end must be a good one."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
