"""The direction of the imports, and what `import unigemm` brings with it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE_ROOT = ROOT / "unigemm"
#: A room of its own, above all of the core: nothing there imports it.
EMULATOR = sorted((CORE_ROOT / "emulator").rglob("*.py"))
CORE = sorted(
    p
    for p in set(CORE_ROOT.rglob("*.py")) - set(EMULATOR)
    if p.parent != CORE_ROOT or p.stem != "__init__"
)
BACKENDS = sorted((ROOT / "backends").rglob("*.py"))
#: Device code is Python that a kernel language reads, so these modules are written in one.
DEVICE_CODE = (
    "kernel",
    "dot",
    "axpy",
    "dmma",
    "dmma_fed",
    "device",
    "boxes",
    "scheduling",
    "persistent",
    "specialised",
    "stream",
    "strip",
    "tail",
    "cluster",
    "exchange",
    "places",
    "repack",
    "reduction",
    "scaling",
    "copies",
    "epilogue",
    "scales",
    "spec",
    "stages",
)
HEAVY = {"cutlass", "cuda", "torch", "cupy", "jax", "tvm_ffi", "triton"}

# A module may import only from lines above its own.
LAYERS = [
    {"array_types", "columns", "extras", "forks", "scratch"},
    {"explanation"},
    {
        "errors",
        "cards",
        "version",
        "overlap",
        "artifact",
        "arrays",
        "cache.reports",
        "cache.trust",
        "strictjson",
    },
    {"dtypes", "env", "cache.manifest", "arrays.torch_tensors", "arrays.dlpack_exports"},
    {"problem", "target", "sass", "log", "cache.store", "cache.bundle"},
    {"blocks", "plans", "measure_device", "cache.waiting"},
    {"gemm", "measure_torch", "measure_cupy"},
    {"backend", "tuning", "arrays.operands", "cache.upkeep", "measure"},
    {"planner", "dump", "registry", "cache.layers", "arrays.libraries"},
    {
        "cache",
        "scales",
        "arrays.axes",
        "vetting",
        "arrays.numpy_arrays",
        "arrays.cupy_arrays",
        "arrays.torch_arrays",
    },
    {"arrays.numpy_ufunc"},
    {"dispatch", "arrays.dlpack_arrays"},
    {"api"},
    {"show", "contest", "machine", "sweep", "plot"},
    {"cli_cache", "cli_sweep", "demo"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# The emulator's modules, in the same way; what they need of the core is named below.
EMULATOR_LAYERS = [
    {"divergence", "faults", "grid", "ptx", "rounding", "timeline"},
    {"parser", "flow", "memory", "tensor_sums"},
    {"program", "writes"},
    {"machine", "arithmetic"},
    {"control", "conversions", "fragments", "moves", "updates", "warp"},
    {"mma", "transfer"},
    {"matrices", "mbarriers", "tensor_memory"},
    {"tma", "tensor_moves"},
    {"bulk_stores", "cluster_launch", "tensor_queue", "wgmma"},
    {"bulk_copies", "narrow", "tensor_stores"},
    {"mma_descriptors"},
    {"tcgen05", "tensor_copies"},
    {"launching"},
    {"host"},
    {"devices"},
    {"__init__"},
]
EMULATOR_LEVEL = {name: i for i, names in enumerate(EMULATOR_LAYERS) for name in names}
# Inside a function: a library's adapter is imported when its first array is seen, and what checks a
# plan when one comes from outside.
ON_FIRST_USE = {
    ("arrays.libraries", f"arrays.{adapter}")
    for adapter in ("numpy_arrays", "cupy_arrays", "torch_arrays", "dlpack_arrays")
} | {("plans", "vetting")}


def module_of(path):
    """Return a core module's name below `unigemm`; a package is its folder."""
    parts = path.relative_to(CORE_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def core_module(path, dots, name):
    """Return the core module that a relative import in a core module means."""
    inside = path.relative_to(CORE_ROOT).parts[:-1]
    parts = (*inside[: len(inside) - dots + 1], *name.split("."))
    return next(
        found for end in range(len(parts), 0, -1) if (found := ".".join(parts[:end])) in LEVEL
    )


def imports(path, *, functions):
    """Yield (dots, name) of the imports that run; those inside functions only where asked for."""

    def walk(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                yield from walk(node.orelse)
            elif isinstance(node, ast.Import):
                yield from ((0, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                if node.module:
                    yield node.level, node.module
                else:
                    yield from ((node.level, alias.name) for alias in node.names)
            elif functions or not isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            ):
                yield from walk(ast.iter_child_nodes(node))

    yield from walk(ast.parse(path.read_text()).body)


def first(name):
    return name.split(".")[0]


def ids(path):
    return f"{path.parent.name}.{path.stem}"


def test_the_walk_sees_imports_in_functions_branches_and_handlers(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "try:\n    import cupy\nexcept ImportError:\n    from . import cache\n"
        "class C:\n    import jax\n    def f(self):\n        from .api import plan\n"
    )
    outside = [(0, "typing"), (0, "cupy"), (1, "cache"), (0, "jax")]
    assert list(imports(path, functions=False)) == outside
    assert list(imports(path, functions=True)) == [*outside, (1, "api")]


def test_every_core_module_has_its_layer():
    assert {module_of(path) for path in CORE} == set(LEVEL)


@pytest.mark.parametrize("path", CORE, ids=ids)
def test_core_modules_import_only_what_lies_below_them(path):
    own = module_of(path)
    for dots, name in imports(path, functions=True):
        assert dots or first(name) != "unigemm", f"{own}: import siblings relatively"
        if not dots:
            continue
        other = core_module(path, dots, name)
        if (own, other) not in ON_FIRST_USE:
            assert LEVEL[other] < LEVEL[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", CORE, ids=ids)
def test_core_modules_know_no_kernel_language_and_load_no_heavy_library(path):
    everywhere = {first(name) for dots, name in imports(path, functions=True) if not dots}
    assert not everywhere & {"cutlass", "tvm_ffi", "triton"}
    at_once = {first(name) for dots, name in imports(path, functions=False) if not dots}
    assert not at_once & {*HEAVY, "numpy", "ml_dtypes"}
    for dots, name in imports(path, functions=True):
        assert not (dots == 0 and name.startswith("cuda.tile"))
        assert not (dots == 1 and first(name) == "backends")


def test_every_module_of_the_emulator_has_its_layer():
    assert {path.stem for path in EMULATOR} == set(EMULATOR_LEVEL)


@pytest.mark.parametrize("path", EMULATOR, ids=ids)
def test_the_emulator_stands_above_the_core_and_knows_no_backend(path):
    own = EMULATOR_LEVEL[path.stem]
    for dots, name in imports(path, functions=True):
        if dots == 1:
            names = [name] if name in EMULATOR_LEVEL else []
            assert all(EMULATOR_LEVEL[other] < own for other in names), f"{path.stem}: {name}"
        elif dots == 2:
            assert LEVEL[name] <= LEVEL["dispatch"]
            core = "faults", "host", "devices", "launching"  # the last: how much memory there is
            assert path.stem in core, "the rest needs no core"
        else:
            assert first(name) not in HEAVY - {"tvm_ffi"}
            assert first(name) != "tvm_ffi" or path.stem == "host"


@pytest.mark.parametrize("path", BACKENDS, ids=ids)
def test_backends_load_a_kernel_language_only_to_compile(path):
    if path.stem in DEVICE_CODE:
        return  # the next test says who may import these
    assert not {first(name) for dots, name in imports(path, functions=False) if not dots} & HEAVY
    for dots, name in imports(path, functions=False):
        assert not (dots and name.split(".")[-1] in DEVICE_CODE), "import device code in a function"


@pytest.mark.parametrize("path", BACKENDS, ids=ids)
def test_backends_stand_on_the_nouns_not_on_what_calls_them(path):
    for dots, name in imports(path, functions=False):
        parts = name.split(".")
        if not dots and parts[0] == "unigemm":
            assert parts[1:2] != ["backends"], "import sibling backends relatively"
            known = ".".join(parts[1:])
            allowed = LEVEL[known] <= LEVEL["backend"] or known == "arrays.numpy_arrays"
            assert allowed, f"{ids(path)} imports {name}"


def loaded(statement):
    """Return the top-level modules that a new process has after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {first(name) for name in json.loads(done.stdout)}


def test_importing_unigemm_brings_nothing_along():
    found = loaded("import unigemm")
    assert "unigemm" in found
    assert not found & {*HEAVY, "numpy", "ml_dtypes", "msgspec", "rich", "typer", "filelock"}


def test_multiplying_on_the_host_brings_no_other_library():
    found = loaded("import numpy, unigemm; unigemm.matmul(numpy.eye(2), numpy.eye(2))")
    assert "numpy" in found
    assert not found & (HEAVY - {"cuda"})


def test_planning_for_a_gpu_brings_no_kernel_language():
    found = loaded(
        "import unigemm; s = unigemm.ArraySpec((8, 8), 'float32');"
        "unigemm.plan(s, s, target='sm_90a')"
    )
    assert not found & (HEAVY - {"cuda"})


def test_every_public_name_exists():
    import unigemm

    assert sorted(unigemm.__all__) == unigemm.__all__
    for name in unigemm.__all__:
        assert getattr(unigemm, name) is not None
        assert name in dir(unigemm)
    with pytest.raises(AttributeError, match="nothing"):
        unigemm.nothing  # noqa: B018


def test_backends_is_a_package_and_a_function():
    import unigemm
    import unigemm.backends.numpy

    assert "numpy" in [backend.name for backend in unigemm.backends()]
