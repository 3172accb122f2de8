"""The direction of the imports, and what `import unigemm` brings with it."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE_ROOT = ROOT / "unigemm"
#: A room of its own, above all of the core: nothing there imports it.
EMULATOR = sorted((CORE_ROOT / "emulator").rglob("*.py"))
CORE = sorted(
    p
    for p in set(CORE_ROOT.rglob("*.py")) - set(EMULATOR)
    if p.parent != CORE_ROOT or p.stem != "__init__"
)
BACKENDS = sorted((ROOT / "backends").rglob("*.py"))
#: Device code is Python that a kernel language reads: the folders `kernels/`, and what these share.
SHARED_DEVICE_CODE = {
    *(
        "cache_hints",
        "device",
        "epilogue",
        "exchange",
        "grouped",
        "operations",
        "quantized",
        "reduction",
        "repack",
        "repack_jobs",
        "scaling",
        "tf32_parts",
        "tile_scheduler",
        "tma_boxes",
        "totals",
    )
}
HEAVY = {"cutlass", "cuda", "torch", "cupy", "jax", "tvm_ffi", "triton"}

#: The rooms, lowest floor first; a room imports only from floors below its own.
FLOORS = [
    {"error_function", "errors", "extras", "forks", "hooks", "version", "columns", "dynamo"},
    {"arguments", "env"},
    {"log", "problem"},
    {"epilogue"},
    {"activations", "arrays", "cache"},
    {"fingerprint", "planning"},
    {"runtime"},
    {"info", "api", "grouped", "quantization", "contractions"},
    {"tuning", "torch", "jax"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: The emulator's rooms, likewise. It stands beside the api, and only `launch` needs the core.
EMULATOR_FLOORS = [{"ptx"}, {"core"}, {"async_copy"}, {"tensor_core"}, {"launch"}, {"__init__"}]
EMULATOR_FLOOR = {room: floor for floor, rooms in enumerate(EMULATOR_FLOORS) for room in rooms}
#: A module's name in a string, by which it may be imported.
NAME = re.compile(r"unigemm(\.\w+)+(:\w+)?", re.ASCII)


def is_device_code(path):
    return path.parent.name == "kernels" or (
        path.parent.name == "cute" and path.stem in SHARED_DEVICE_CODE
    )


def name_of(path):
    """Return a module's name below `unigemm`; a package is its folder."""
    inside = path.relative_to(ROOT)
    parts = (inside if inside.parts[0] == "backends" else path.relative_to(CORE_ROOT)).parts
    parts = (*parts[:-1], parts[-1].removesuffix(".py"))
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_of(path, dots, name, modules):
    """Return the name below `unigemm` of what an import in a module means; None for others'."""
    if dots:
        inside = (
            name_of(path).split(".") if path.stem == "__init__" else name_of(path).split(".")[:-1]
        )
        parts = [*inside[: len(inside) - dots + 1], *name.split(".")]
    elif name.split(".")[0] == "unigemm":
        parts = name.split(".")[1:]
    else:
        return None
    found = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((each for each in found if each in modules), None)


def graph(paths):
    """Return what each module imports of the others, also inside functions."""
    modules = {name_of(path): path for path in paths}
    return {
        own: {
            other
            for dots, name in imports(path, functions=True)
            if (other := module_of(path, dots, name, modules)) not in (None, own)
        }
        for own, path in modules.items()
    }


def circle_in(edges):
    """Return modules that import one another in a circle; None where there are none."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        path.append(module)
        found = next(filter(None, map(visit, sorted(edges[module]))), None)
        path.pop()
        done.add(module)
        return found

    return next(filter(None, map(visit, edges)), None)


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


def named(path):
    """Yield (dots, name) of what is named in strings: by `import_module`, or kept for it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if NAME.fullmatch(node.value):
                yield 0, node.value.partition(":")[0]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if name.startswith("."):
                yield len(name) - len(name.lstrip(".")), name.lstrip(".")


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


def test_the_walk_sees_what_strings_name(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        '"""unigemm.api is above."""\n'
        'WHERE = "unigemm.tuning.online"\n'
        'OTHER = {"numpy": "unigemm.backends.numpy:BACKEND"}\n'
        'def f():\n    """unigemm.api"""\n'
        '    return importlib.import_module("..planning.plan", __package__)\n'
    )
    found = {(0, "unigemm.tuning.online"), (0, "unigemm.backends.numpy"), (2, "planning.plan")}
    assert {*named(path)} == found | {(0, "unigemm.api")}


def test_every_room_has_its_floor():
    assert {name_of(path).split(".")[0] for path in CORE} == set(FLOOR)
    assert {
        path.relative_to(CORE_ROOT / "emulator").parts[0].removesuffix(".py") for path in EMULATOR
    } == set(EMULATOR_FLOOR)


@pytest.mark.parametrize("path", CORE, ids=ids)
def test_no_import_of_the_core_runs_upwards(path):
    modules = {name_of(each) for each in (*CORE, *EMULATOR, *BACKENDS)}
    own = name_of(path)
    for dots, name in imports(path, functions=True):
        assert dots or first(name) != "unigemm", f"{own}: import siblings relatively"
    for dots, name in (*imports(path, functions=True), *named(path)):
        other = module_of(path, dots, name, modules)
        if other is not None and first(other) != first(own):
            assert first(other) in FLOOR, f"{own} names {other}: see unigemm/hooks.py"
            assert FLOOR[first(other)] < FLOOR[first(own)], f"{own} imports {other}"


@pytest.mark.parametrize("paths", [CORE, EMULATOR, BACKENDS], ids=["core", "emulator", "backends"])
def test_no_imports_run_in_a_circle(paths):
    assert circle_in(graph(paths)) is None


def test_a_circle_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


@pytest.mark.parametrize("path", CORE, ids=ids)
def test_core_modules_know_no_kernel_language_and_load_no_heavy_library(path):
    everywhere = {first(name) for dots, name in imports(path, functions=True) if not dots}
    # JAX's programs and the host code of kernels are called through tvm_ffi; it compiles nothing.
    calls = first(name_of(path)) == "jax" or name_of(path) == "cache.host_code"
    own = {"tvm_ffi"} if calls else set()
    assert not everywhere & ({"cutlass", "tvm_ffi", "triton"} - own)
    at_once = {first(name) for dots, name in imports(path, functions=False) if not dots}
    # A framework's own room is imported only by whoever asks for it.
    own = {first(name_of(path))}
    if own & {
        "activations",
        "epilogue",
        "fingerprint",
        "jax",
    }:  # imported by the first call that has an epilogue
        own.add("numpy")
    assert not at_once & ({*HEAVY, "numpy", "ml_dtypes"} - own)
    for dots, name in imports(path, functions=True):
        assert not (dots == 0 and name.startswith("cuda.tile"))
        assert not (dots == 1 and first(name) == "backends")


@pytest.mark.parametrize("path", EMULATOR, ids=ids)
def test_the_emulator_stands_above_the_core_and_knows_no_backend(path):
    modules = {name_of(each) for each in {*CORE, *EMULATOR}}
    room = path.relative_to(CORE_ROOT / "emulator").parts[0].removesuffix(".py")
    for dots, name in imports(path, functions=True):
        assert first(name) not in HEAVY - {"tvm_ffi"}
        assert first(name) != "tvm_ffi" or path.stem == "host"
        other = module_of(path, dots, name, modules)
        if other is None:
            continue
        if first(other) == "emulator":
            its = other.split(".")[1]
            assert its == room or EMULATOR_FLOOR[its] < EMULATOR_FLOOR[room], f"{room}: {other}"
        else:
            assert FLOOR[first(other)] <= FLOOR["runtime"]
            assert room == "launch" or other == "errors", "the rest needs no core"


DEVICE_MODULES = {
    name_of(path) for path in BACKENDS if is_device_code(path) and path.stem != "__init__"
}


@pytest.mark.parametrize("path", BACKENDS, ids=ids)
def test_backends_load_a_kernel_language_only_to_compile(path):
    if is_device_code(path):
        return
    assert not {first(name) for dots, name in imports(path, functions=False) if not dots} & HEAVY
    for dots, name in imports(path, functions=False):
        other = module_of(path, dots, name, DEVICE_MODULES)
        assert other is None, "import device code in a function"


@pytest.mark.parametrize("path", BACKENDS, ids=ids)
def test_backends_stand_on_the_nouns_not_on_what_calls_them(path):
    for dots, name in imports(path, functions=False):
        parts = name.split(".")
        if not dots and parts[0] == "unigemm":
            assert parts[1:2] != ["backends"], "import sibling backends relatively"
            known = ".".join(parts[1:])
            assert FLOOR[first(known)] <= FLOOR["planning"], f"{ids(path)} imports {name}"


@pytest.mark.parametrize("name", ["cute_simt", "cute_wgmma", "cute_tcgen05", "cutile"])
def test_the_digest_of_a_kernel_holds_every_file_that_it_imports(name):
    from importlib import import_module

    from unigemm.backends.common.kernel_key import COMMON_CODE_FILES

    backend = import_module(f"unigemm.backends.{'cutile' if name == 'cutile' else 'cute'}.backend")
    edges = graph(BACKENDS)
    seen: set[str] = set()
    host = {"backends.cute.backend", "backends.cute.loading"}
    device = (f"backends.{name}.kernels", "backends.cute." if name != "cutile" else "-")
    ahead = [module for module in edges if module.startswith(device)]
    while ahead:
        module = ahead.pop()
        if module not in seen | host:
            seen.add(module)
            ahead += edges[module]

    def files(package):
        prefix = f"backends.{package}."
        return {each.split(".")[2] + ".py" for each in seen if each.startswith(prefix)}

    assert files(name) - {"kernels.py"} <= set(backend.CODE_FILES)
    assert files("common") <= set(COMMON_CODE_FILES)


@pytest.mark.parametrize("name", ["cute_simt", "cutile"])
def test_another_host_file_leaves_the_digest_of_kernels_as_it_is(name, monkeypatch):
    from importlib import import_module

    module = import_module(f"unigemm.backends.{name}.backend")
    shared = import_module("unigemm.backends.cute.backend") if name != "cutile" else module
    digest = shared._digest.__wrapped__
    arguments = () if name == "cutile" else (name,)
    before, read = digest(*arguments), shared.package_sources

    def with_more(package):
        return {**read(package), **({} if "kernels" in package else {"new_host_file.py": b"1"})}

    if name != "cutile":  # what the CuTe backends share is device code but for its backend.py
        with_more_own = lambda package: (  # noqa: E731
            with_more(package) if package.endswith(name) else read(package)
        )
        monkeypatch.setattr(shared, "package_sources", with_more_own)
    else:
        monkeypatch.setattr(shared, "package_sources", with_more)
    assert digest(*arguments) == before
    changed = {"kernels": lambda package: {**read(package), "gemm.py": b"other"}}
    monkeypatch.setattr(
        shared,
        "package_sources",
        lambda package: (changed["kernels"] if "kernels" in package else read)(package),
    )
    assert digest(*arguments) != before


def modules(statement):
    """Return the modules that a new process has after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def loaded(statement):
    """Return the top-level ones of these."""
    return {first(name) for name in modules(statement)}


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


def test_what_looks_after_the_cache_and_reads_machine_code_is_no_part_of_a_first_call():
    found = modules(
        "import unigemm, unigemm.cache, unigemm.backends.cute.loading; unigemm.matmul;"
        "s = unigemm.ArraySpec((8, 8), 'float32'); unigemm.plan(s, s, target='sm_90a')"
    )
    assert "unigemm.cache.layers" in found
    aside = {f"unigemm.cache.{name}" for name in ("bundle", "reports", "sass", "upkeep")}
    assert not found & {*aside, "tarfile"}


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_stands_on_a_library_that_is_missing_says_how_to_get_it(library):
    code = f"import sys; sys.modules[{library!r}] = None; import unigemm.{library}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    command = f'pip install "unigemm[{library}]"'
    assert done.stderr.endswith(f"which is not installed; {command}\n"), done.stderr


def test_every_public_name_exists():
    import unigemm

    assert sorted(unigemm.__all__) == unigemm.__all__
    for name in unigemm.__all__:
        assert getattr(unigemm, name) is not None
        assert name in dir(unigemm)
    with pytest.raises(AttributeError, match="nothing"):
        unigemm.nothing  # noqa: B018


def test_every_public_name_stays_what_it_is_when_a_backend_is_imported():
    import unigemm

    before = {name: getattr(unigemm, name) for name in unigemm.__all__}
    for name in ("numpy", "cute_simt", "cutile"):
        importlib.import_module(f"unigemm.backends.{name}")
    assert {name: getattr(unigemm, name) for name in unigemm.__all__} == before
    assert "numpy" in [backend.name for backend in unigemm.backend_info()]


def test_dir_shows_what_users_name_and_nothing_else():
    import unigemm

    shown = {name for name in dir(unigemm) if not name.startswith("__")}
    public = {name for name in unigemm.__all__ if not name.startswith("__")}
    assert shown - {"emulator", "jax", "torch"} == {*public, "epilogue"}
