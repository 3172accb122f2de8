"""The direction of the imports, and what `import unigemm` brings with it."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
from pathlib import Path

import pytest
from processes import output_of, python

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
HEAVY = {"cutlass", "cuda", "torch", "cupy", "jax", "tvm_ffi", "triton"}

#: The rooms, lowest floor first; a room imports only from floors below its own.
FLOORS = [
    {"errors"},
    {"support"},
    {"hooks"},
    {"problem"},
    {"epilogue"},
    {"activations", "arrays", "cache"},
    {"planning"},
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
#: Modules that name, in annotations alone, types of modules that import them.
TYPES_ABOVE = {
    "planning.explanation": {"planning.plan"},
}
#: A module's name in a string, by which it may be imported.
NAME = re.compile(r"unigemm(\.\w+)+(:\w+)?", re.ASCII)


def is_device_code(path):
    """Device code is Python that a kernel language reads."""
    return path.parent.name == "kernels"


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


def graph(paths, *, types=False):
    """Return what each module imports of the others, also inside functions; or for types, too."""
    modules = {name_of(path): path for path in paths}
    return {
        own: {
            other
            for dots, name in imports(path, functions=True, names=True, types=types)
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


def imports(path, *, functions, names=False, types=False):
    """Yield (dots, name) of the imports that run; those inside functions only on request.

    With `names` every name that is taken of a module is one, too: it may be a module of a package.
    With `types` also what only checkers of types run.
    """

    def walk(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types:
                yield from walk(node.orelse)
            elif isinstance(node, ast.Import):
                yield from ((0, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                if node.module and names:
                    yield from ((node.level, f"{node.module}.{each.name}") for each in node.names)
                elif node.module:
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


def test_tests_reach_the_call_path_through_one_module():
    """So that the code behind it can be moved without them."""
    named = re.compile(r"unigemm(\.| import .*\b)runtime\b")  # also in the text of programs
    tests = (ROOT / "tests").rglob("*.py")
    found = {path.name for path in tests if named.search(path.read_text(encoding="utf-8"))}
    assert found == {"call_path.py"}


def test_every_room_has_its_floor():
    assert {name_of(path).split(".")[0] for path in CORE} == set(FLOOR)
    assert {
        path.relative_to(CORE_ROOT / "emulator").parts[0].removesuffix(".py") for path in EMULATOR
    } == set(EMULATOR_FLOOR)


def test_few_modules_lie_loose_beside_the_rooms():
    loose = {path.stem for path in CORE_ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= 8, loose


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


@pytest.mark.parametrize("paths", [CORE, EMULATOR, BACKENDS], ids=["core", "emulator", "backends"])
def test_no_more_files_name_the_types_of_those_that_import_them(paths):
    edges = graph(paths, types=True)
    for module, others in TYPES_ABOVE.items():
        assert module not in edges or others <= edges[module], f"shorten the list: {module}"
        edges[module] = edges.get(module, set()) - others
    assert circle_in(edges) is None


def test_no_benchmarks_import_one_another_in_a_circle():
    found = {path.stem: path for path in (ROOT / "bench").glob("*.py")}
    edges = {
        own: {
            parts[1]
            for _, name in imports(path, functions=True, names=True, types=True)
            if (parts := name.split("."))[0] == "bench" and parts[1] in {*found} - {own}
        }
        for own, path in found.items()
    }
    assert any(edges.values())
    assert circle_in(edges) is None


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
    # A framework's own room is imported only by whoever needs it.
    own = {first(name_of(path))}
    if name_of(path) in {"activations", "epilogue", "planning.fingerprint"} or own == {"jax"}:
        own.add("numpy")  # these are imported by the first call that has an epilogue
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


#: What has kernels, and the module that makes and names them.
KERNEL_MAKERS = {
    **dict.fromkeys(("cute_simt", "cute_wgmma", "cute_tcgen05"), "cute.backend"),
    "cutile": "cutile.backend",
    "cute_quantize": "cute_quantize.quantizer",
}


def digest_of(name):
    """Return the digest of what decides the code of a backend's kernels, worked out anew."""
    maker = importlib.import_module(f"unigemm.backends.{KERNEL_MAKERS[name]}")
    return maker._digest.__wrapped__(*[name] * (KERNEL_MAKERS[name] == "cute.backend"))


def behind_kernels():
    """Return what the device code of each backend imports, and what compiles it: read as trees."""
    edges = graph(BACKENDS)

    def reached(name):
        ahead = [each for each in edges if each.startswith(f"backends.{name}.kernels.")]
        ahead.append(f"backends.{'cutile' if name == 'cutile' else 'cute'}.toolchain")
        seen = set()
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead += edges[module]
        return {module.removeprefix("backends.") for module in seen if module.count(".") > 1}

    return {name: reached(name) for name in KERNEL_MAKERS}


@pytest.fixture
def edited(monkeypatch):
    """Make files of the backends other than they are: by module, what is put behind the text."""
    from unigemm.backends.common import code_sources

    more, read = {}, functools.cache(code_sources.package_sources)

    def package_sources(package):
        own, found = package.removeprefix("unigemm.backends."), dict(read(package))
        for module, text in more.items():
            folder, _, name = module.rpartition(".")
            if folder == own:
                found[f"{name}.py"] = found.get(f"{name}.py", b"") + text
        return found

    monkeypatch.setattr(code_sources, "package_sources", package_sources)
    return more


@pytest.mark.parametrize("name", KERNEL_MAKERS)
def test_a_digest_holds_device_code_and_every_file_that_it_imports(name, monkeypatch):
    maker = importlib.import_module(f"unigemm.backends.{KERNEL_MAKERS[name]}")
    read, held = maker.code_sources, {}
    monkeypatch.setattr(maker, "code_sources", lambda *modules: held.update(read(*modules)) or held)
    digest_of(name)
    assert set(held) == behind_kernels()[name]


def test_a_changed_file_changes_the_digests_of_kernels_that_use_it_and_no_other(edited):
    before, behind = {name: digest_of(name) for name in KERNEL_MAKERS}, behind_kernels()
    paths = {name_of(path).removeprefix("backends."): path for path in BACKENDS}
    for module, path in paths.items():
        if path.stem == "__init__":
            continue
        edited.clear()
        edited[module] = b"# a comment\n"
        changed = {name for name in KERNEL_MAKERS if digest_of(name) != before[name]}
        assert changed == {name for name in KERNEL_MAKERS if module in behind[name]}, module
        assert changed or not is_device_code(path), f"no kernel uses {module}"


def test_a_new_host_file_changes_no_digest_in_any_folder(edited):
    before = {name: digest_of(name) for name in KERNEL_MAKERS}
    folders = {path.parent.name for path in BACKENDS if not is_device_code(path)} - {"backends"}
    assert {"common", "cute", *KERNEL_MAKERS} <= folders
    edited.update({f"{folder}.new_host_file": b"NEW = 1\n" for folder in sorted(folders)})
    assert {name: digest_of(name) for name in KERNEL_MAKERS} == before


@pytest.mark.parametrize(
    "job", ["backend", "candidates", "cost", "legality", "loading", "quantizer", "tiles", "launch"]
)
def test_a_comment_in_a_host_file_changes_no_digest(job, edited):
    before = {name: digest_of(name) for name in KERNEL_MAKERS}
    own = [path for path in BACKENDS if path.stem == job and path.parent.name != "numpy"]
    assert own
    edited.update({name_of(path).removeprefix("backends."): b"# a comment\n" for path in own})
    assert {name: digest_of(name) for name in KERNEL_MAKERS} == before


def modules(statement):
    """Return the modules that a new process has after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(output_of("-c", code)))


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
    said = python("-c", code).stderr
    assert said.endswith(f'which is not installed; pip install "unigemm[{library}]"\n'), said


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
