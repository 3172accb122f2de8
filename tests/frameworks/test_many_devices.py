"""Products spread over several devices: two processes of PyTorch."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from needed import needed

needed("torch")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(script, *arguments):
    path = Path(__file__).with_name(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_dtensors_are_multiplied_where_they_lie_and_gradients_go_back():
    run("dtensor_products.py", free_port())


def test_shard_map_multiplies_on_each_device_and_gradients_go_back():
    needed("jax")
    run("jax_on_two_devices.py")
