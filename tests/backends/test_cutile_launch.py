"""cutile's launches on a driver that only records, and what compiling needs."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from test_cutile import H200, gemm_of, plan_of
from threads import in_threads

from unigemm.backends.cutile import launch, toolchain
from unigemm.backends.cutile.backend import BACKEND
from unigemm.backends.cutile.launch_arguments import Call, CallArgument, Divisor, calls
from unigemm.errors import BackendUnavailable, UnigemmError
from unigemm.planning.plan import Plan
from unigemm.problem.dtypes import DType
from unigemm.problem.problem import MatrixType
from unigemm.problem.scales import PER_TENSOR


class Recorder:
    """Stands for the driver's launch: reads the arguments as the driver would, eight bytes each."""

    def __init__(self, monkeypatch, status=0):
        from cuda.bindings import driver

        self.launches = []
        self.status = status
        self.count = 0
        monkeypatch.setattr(driver, "cuLaunchKernelEx", self.launch)
        monkeypatch.setattr(driver, "cuGetErrorName", lambda status: (0, b"CUDA_ERROR_STUB"))

    def launch(self, config, function, pointers, extra):
        addresses = (ctypes.c_uint64 * self.count).from_address(pointers)
        values = [int.from_bytes(ctypes.string_at(x, 8), "little") for x in addresses]
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        overlap = [int(x.id) for x in config.attrs]
        stream = int(config.hStream)
        self.launches.append((function, grid, block, stream, values, overlap))
        return (self.status,)


def test_a_launch_passes_each_argument_in_its_own_bytes(monkeypatch):
    driver = Recorder(monkeypatch)
    arguments_ = (
        *(
            CallArgument("a"),
            1,
            -3,
            CallArgument("b", 16),
            CallArgument("d"),
            CallArgument("workspace"),
            2**31 - 1,
        ),
        Divisor(3),
    )
    driver.count = len(arguments_)
    call = Call("gemm", 77, arguments_)
    run = launch.launcher((call,), {"gemm": "f"}, swapped=False, overlap=True)
    run(0x100, 0x200, 2**48 + 8, 0x400, 9)
    run(0x108, 0x208, 0x308, 0, 9)
    turned = launch.launcher((call,), {"gemm": "f"}, swapped=True, overlap=False)
    turned(0x100, 0x200, 0x300, 0x400, 5)
    first, second, third = driver.launches
    minus, third_part = 2**64 - 3, 33 << 32 | 0xAAAAAAAB
    assert first[:4] == ("f", (77, 1, 1), (1, 1, 1), 9)
    assert first[4] == [0x100, 1, minus, 0x210, 2**48 + 8, 0x400, 2**31 - 1, third_part]
    assert second[4] == [0x108, 1, minus, 0x218, 0x308, 0, 2**31 - 1, third_part]
    assert len(first[5]) == 1
    assert third[3] == 5
    assert third[4] == [0x200, 1, minus, 0x110, 0x300, 0x400, 2**31 - 1, third_part]
    assert third[5] == []


def test_scales_reach_the_kernel_as_addresses_extents_and_bits(monkeypatch):
    gemm = replace(gemm_of(16, 16, 64, dtype=DType.FLOAT8_E4M3FN))
    problem = replace(gemm.problem, scales=PER_TENSOR, d=MatrixType(DType.FLOAT32, "n", 16))
    plan = Plan("cutile", plan_of(tile=(64, 64, 128)).config, problem, gemm.extents, H200)
    (call,) = calls(plan, gemm)
    driver = Recorder(monkeypatch)
    driver.count = len(call.arguments)
    run = launch.launcher((call,), {"gemm": "f"}, swapped=False, overlap=True)
    run(1, 2, 3, 0, 7, 0x500, 0, 0.5)
    values = driver.launches[0][4]
    assert values[27:34] == [0x500, 1, 1, 0, 0, 1, 0x3FE0000000000000]


def test_threads_do_not_share_what_the_driver_reads(monkeypatch):
    driver = Recorder(monkeypatch)
    arguments_ = (CallArgument("a"), CallArgument("b"), CallArgument("d"))
    driver.count = 3
    run = launch.launcher(
        (Call("gemm", 1, arguments_),), {"gemm": "f"}, swapped=False, overlap=True
    )
    gate = threading.Barrier(2)
    plain = driver.launch
    seen = []

    def slow(config, function, pointers, extra):
        seen.append(pointers)
        gate.wait()  # both threads have filled their buffers in
        return plain(config, function, pointers, extra)

    from cuda.bindings import driver as bindings

    monkeypatch.setattr(bindings, "cuLaunchKernelEx", slow)
    run = launch.launcher(
        (Call("gemm", 1, arguments_),), {"gemm": "f"}, swapped=False, overlap=True
    )
    in_threads(run, [(start, start + 1, start + 2, 0, start) for start in (10, 20)])
    assert len(set(seen)) == 2
    assert sorted((x[3], x[4]) for x in driver.launches) == [(10, [10, 11, 12]), (20, [20, 21, 22])]


def test_a_refused_launch_says_what_the_driver_said(monkeypatch):
    Recorder(monkeypatch, status=700).count = 1
    run = launch.launcher(
        (Call("gemm", 1, (CallArgument("a"),)),), {"gemm": "f"}, swapped=False, overlap=True
    )
    with pytest.raises(UnigemmError, match="cuLaunchKernelEx gave CUDA_ERROR_STUB"):
        run(1, 2, 3, 0, 0)


def test_a_thread_that_has_used_no_cuda_gets_a_context_and_launches(monkeypatch):
    driver = Recorder(monkeypatch, status=201)  # CUDA_ERROR_INVALID_CONTEXT
    driver.count = 1
    given = []
    monkeypatch.setattr(
        launch, "current_context", lambda: given.append(1) or setattr(driver, "status", 0)
    )
    call = Call("gemm", 1, (CallArgument("a"),))
    run = launch.launcher((call,), {"gemm": "f"}, swapped=False, overlap=True)
    run(1, 2, 3, 0, 0)
    run(1, 2, 3, 0, 0)
    assert (len(given), len(driver.launches)) == (1, 3)
    driver.status = 201
    monkeypatch.setattr(launch, "current_context", lambda: None)
    with pytest.raises(UnigemmError, match="cuLaunchKernelEx gave"):
        run(1, 2, 3, 0, 0)


def test_an_old_driver_is_named_with_what_is_needed(monkeypatch):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (0, 12080))
    with pytest.raises(BackendUnavailable, match=r"r580.*this one is for 12\.8; update it"):
        launch.load({"gemm.cubin": b"no cubin"})


# The toolchain.


@pytest.fixture
def tools(monkeypatch):
    """Let a test say which packages are installed, and what tileiras on PATH answers."""
    installed = {}
    monkeypatch.setattr(toolchain, "_installed", installed.get)
    monkeypatch.setattr(toolchain, "_packaged", lambda: Path("/packages/bin/tileiras"))
    monkeypatch.setattr(toolchain.shutil, "which", lambda name, path=None: None)

    def clear():
        for cached in (toolchain.missing, toolchain.versions, toolchain._tileiras):
            cached.cache_clear()

    clear()
    yield installed, clear
    clear()


PACKAGES = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")


def test_what_compiling_needs_is_named_with_how_to_get_it(tools, monkeypatch, tmp_path):
    installed, clear = tools
    assert 'pip install "unigemm[cutile]"' in toolchain.missing()
    installed["cuda-tile"] = "1.7.0"
    clear()
    assert "neither installed nor on PATH" in toolchain.missing()
    installed |= dict.fromkeys(PACKAGES, "13.4.92")
    clear()
    assert "tileiras is 13.4 and 13.5 is needed" in toolchain.missing()
    installed |= dict.fromkeys(PACKAGES, "13.6.1")
    clear()
    assert toolchain.missing() is None
    assert toolchain.versions() == {"cuda-tile": "1.7.0", "tileiras": "13.6"}
    installed["nvidia-nvvm"] = "13.5.37"  # cuda.tile does not take packages that differ
    clear()
    assert "neither installed nor on PATH" in toolchain.missing()
    script = tmp_path / "tileiras"
    script.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.5, V13.5.37'\n")
    script.chmod(0o755)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name, path=None: str(script))
    clear()
    assert toolchain.missing() is None
    assert toolchain.versions()["tileiras"] == "13.5"


def test_without_a_compiler_the_key_is_that_of_the_pinned_one(tools):
    installed, clear = tools
    alone = BACKEND.key(plan_of())
    installed |= {"cuda-tile": "1.7.0", **dict.fromkeys(PACKAGES, "13.5.37")}
    clear()
    assert BACKEND.key(plan_of()) == alone
    installed |= dict.fromkeys(PACKAGES, "13.6.2")
    clear()
    assert BACKEND.key(plan_of()) != alone


def test_compiling_without_a_compiler_says_what_to_install_or_bring(tools):
    assert BACKEND.missing() is None
    assert "pip install" in BACKEND.compiler_missing()
    with pytest.raises(BackendUnavailable, match="UNIGEMM_CACHE_BUNDLES"):
        BACKEND.compile(plan_of())


def test_the_compiler_runs_with_its_own_toolkit_and_nothing_of_the_users(monkeypatch, tools):
    installed, clear = tools
    installed |= {"cuda-tile": "1.7.0", **dict.fromkeys(PACKAGES, "13.5.37")}
    for name in ("CUDA_HOME", "CUDA_ROOT", "CUDA_PATH", "LD_PRELOAD", "LLVM_OVERRIDE_PRODUCER"):
        monkeypatch.setenv(name, "/of/the/user")
    clear()
    environment = toolchain._tileiras().environment
    assert environment["CUDA_ROOT"] == "/packages"
    assert environment["PATH"].startswith("/packages/bin:")
    assert "/of/the/user" not in "".join(environment.values())
