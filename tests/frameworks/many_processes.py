"""What scripts of several processes need."""

from __future__ import annotations

import socket


def free_port():
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
