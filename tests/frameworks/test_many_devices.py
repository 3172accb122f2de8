"""Products spread over several devices: two processes of PyTorch, two host devices of JAX."""

from __future__ import annotations

from pathlib import Path

from many_processes import free_port
from needed import needed
from processes import output_of

HERE = Path(__file__).parent


def test_dtensors_are_multiplied_where_they_lie_and_gradients_go_back():
    needed("torch")
    output_of(HERE / "dtensor_products.py", free_port())


def test_ranks_that_plan_otherwise_are_named_on_all_of_them():
    needed("torch")
    output_of(HERE / "ranks_that_plan.py", free_port())


def test_shard_map_multiplies_on_each_device_and_gradients_go_back():
    needed("jax")
    output_of(HERE / "jax_on_two_devices.py")
