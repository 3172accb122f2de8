"""What is read off a cubin is what the compiler put there."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from test_simt_compile import plan_of

from unigemm.backends.cute import toolchain
from unigemm.backends.cute_simt.backend import BACKEND
from unigemm.cache import sass
from unigemm.cache.sass import disassemble, inspect_cubin, instruction_mix, kernel_mixes
from unigemm.errors import BackendUnavailable, CompilationError
from unigemm.problem.dtypes import DType

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def cubin():
    """Compile a product with split K: two kernels in one cubin."""
    return BACKEND.compile(plan_of(DType.FLOAT32, split=2)).files["kernel.cubin"]


def test_every_kernel_is_reported_apart_and_the_most_of_all(cubin):
    report = inspect_cubin(cubin)
    main, reduction = sorted(report.kernels, key=lambda kernel: -kernel.registers)
    assert main.name.startswith("simt_gemm")
    assert reduction.name.startswith("split_reduce")
    mixes = kernel_mixes(cubin)
    assert mixes[main.name]["FFMA"] >= 128
    assert mixes[main.name]["LDGSTS"] > 0
    assert "LDGSTS" not in mixes[reduction.name]
    assert mixes[reduction.name]["FADD"] > 0
    assert 0 < reduction.registers < main.registers == report.registers <= 255
    assert report.smem_bytes == max(main.smem_bytes, reduction.smem_bytes)
    assert report.local_bytes == 0


def test_every_instruction_is_counted_once(cubin):
    text = disassemble(cubin)
    mix = instruction_mix({"kernel.cubin": cubin})
    # Each instruction ends with a semicolon before the comment that holds its encoding.
    assert sum(mix.values()) == len(re.findall(r";\s+/\*", text)) > 500
    for opcode in ("FFMA", "LDS", "BRA", "EXIT"):
        found = len(re.findall(rf"[\s]{opcode}[\s.;]", text))
        assert mix[opcode] == found > 0
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", opcode) for opcode in mix)
    predicated = re.findall(r"@!?U?P\w+\s+([A-Z0-9_]+)", text)
    assert predicated
    assert set(predicated) <= set(mix)


def test_registers_that_are_indexed_at_run_time_are_seen_as_local_memory():
    import sass_kernel

    artifact = toolchain.compile_kernel(
        lambda: sass_kernel.run, sass_kernel.example_arguments, "sm_90a", 0
    )
    array = sass_kernel.COUNT * 4
    assert array <= artifact.info.spill_bytes < 2 * array  # the array, and a frame around it
    assert instruction_mix(artifact.files)["STL"] > 0
    assert instruction_mix(artifact.files)["LDL"] > 0


@pytest.mark.parametrize(
    ("reader", "tool"),
    [(inspect_cubin, "cuobjdump"), (disassemble, "cuobjdump"), (kernel_mixes, "nvdisasm")],
)
@pytest.mark.parametrize("data", [b"", b"not a cubin", b"\x7fELF" + bytes(100)])
def test_what_is_no_cubin_is_refused_with_thetools_words(data, reader, tool):
    with pytest.raises(CompilationError, match=rf"{tool} cannot read the cubin: .*{tool}"):
        reader(data)


@pytest.fixture
def no_packages(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sass, "files", absent)
    sass.tool.cache_clear()
    yield
    sass.tool.cache_clear()


def test_a_missingtool_names_the_package_to_install(cubin, no_packages, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"cuobjdump was not found.*unigemm\[cute\]"):
        inspect_cubin(cubin)
    for reader in (kernel_mixes, disassemble):
        with pytest.raises(BackendUnavailable, match=r"nvdisasm was not found.*unigemm\[cute\]"):
            reader(cubin)


def test_tools_on_the_path_serve_where_the_packages_are_missing(cubin, monkeypatch, request):
    folder = sass.tool("cuobjdump").parent
    expected, mixes = inspect_cubin(cubin), kernel_mixes(cubin)
    request.getfixturevalue("no_packages")
    monkeypatch.setenv("PATH", str(folder))
    assert (inspect_cubin(cubin), kernel_mixes(cubin)) == (expected, mixes)
