"""What a user has set for the kernel languages does not reach the kernels that are kept."""

from __future__ import annotations

import ast
import os
import sys

import pytest
from processes import output_of, python

import unigemm
from unigemm.backends.cute import toolchain as cute
from unigemm.backends.cutile import toolchain as cutile

pytestmark = pytest.mark.compile
needs_cute = pytest.mark.skipif(cute.missing() is not None, reason=str(cute.missing()))
needs_cutile = pytest.mark.skipif(cutile.missing() is not None, reason=str(cutile.missing()))

COMPILE = """
import hashlib, sys, unigemm
from unigemm.planning.registry import backend_named

def compiled(backend, arch):
    spec = unigemm.ArraySpec((64, 64), "float16" if backend == "cutile" else "float32")
    plan = unigemm.plan(spec, spec, backend=backend, target=arch)
    return backend_named(backend).compile(plan).files
"""

CUTE = """
from unittest import mock
from unigemm.backends.cute.settings import default_settings

from cutlass.cutlass_dsl import CuTeDSL
dsl = CuTeDSL._get_dsl()
dsl.envar.lineinfo = True  # a program may also set it later
spec = {entry.attribute for entry in dsl.envar._ENV_VAR_SPEC}
of_user = {name: getattr(dsl.envar, name) for name in spec if name != "_arch"}
kept = vars(dsl.envar), dsl.preprocessor, dsl._trace_finalize_hooks
with default_settings():
    for entry in dsl.envar._ENV_VAR_SPEC:
        if entry.affects_compile and isinstance(entry.source, str) and entry.attribute != "_arch":
            value = getattr(dsl.envar, entry.attribute)
            default = False if callable(entry.default) else entry.default
            assert value == default, entry
            assert of_user[entry.attribute] != default, f"the test does not set {entry}"
    assert dsl.envar._arch is None
assert (vars(dsl.envar), dsl.preprocessor, dsl._trace_finalize_hooks) == kept
files = compiled("cute_simt", "sm_80")
assert dsl.envar.lineinfo and dsl.envar.compiler_opt
"""
CUTE_SET = {
    "CUTE_DSL_DEBUG": "1",
    "CUTE_DSL_LINEINFO": "1",
    "CUTE_DSL_ENABLE_PYIR": "1",
    "CUTE_DSL_AUTO_M2S": "1",
    "CUTE_DSL_TOLERATE_M2M": "0",
    "CUTE_DSL_DRYRUN": "1",
    "CUTE_DSL_ARCH": "sm_75",
    "CUTE_DSL_WARNINGS_AS_ERRORS": "1",
    "CUTE_DSL_COMPILER_OPT": "opt-level=0",
    "CUTE_DSL_COMPILER_BACKEND": "none",
    "CUTE_DSL_ENABLE_ASSERTIONS": "1",
    "CUTE_DSL_ENABLE_TVM_FFI": "1",
    "CUTE_DSL_LOC_TRACEBACKS": "3",
    "CUTE_DSL_USE_EXTENSION_COMPILER": "1",
    "LD_RUN_PATH": "/of/the/user",
}

CUTILE = """
from cuda.tile import _compile, _debug
from cuda.tile._ir import ops

_compile.cache_lookup = lambda *key: b"of another kernel"
files = compiled("cutile", "sm_90a")
assert _debug.CUDA_TILE_TESTING_DISABLE_DIV and ops.CUDA_TILE_TESTING_DISABLE_DIV
assert _compile.EXPERIMENTAL_CUDA_TILE_DEBUG_BUILD
"""
CUTILE_SET = {
    "EXPERIMENTAL_CUDA_TILE_DEBUG_BUILD": "1",
    "CUDA_TILE_TESTING_DISABLE_DIV": "1",
    "CUDA_TILE_TESTING_DISABLE_TOKEN_ORDER": "1",
    "CUDA_HOME": "/nowhere",
    "CUDA_ROOT": "/nowhere",
}


@pytest.mark.parametrize(
    ("backend", "arch", "code", "settings"),
    [
        pytest.param("cute_simt", "sm_80", CUTE, CUTE_SET, marks=needs_cute, id="cute"),
        pytest.param("cutile", "sm_90a", CUTILE, CUTILE_SET, marks=needs_cutile, id="cutile"),
    ],
)
def test_a_kernel_is_the_same_bytes_whatever_is_set(tmp_path, backend, arch, code, settings):
    # Both in processes of their own: cutile's cubins differed in one that had run other tests.
    own = {"CUDA_TILE_CACHE_DIR": str(tmp_path / "of-cutile")}
    plain = digests_of(f"{COMPILE}files = compiled({backend!r}, {arch!r})\n", own)
    assert plain
    assert digests_of(COMPILE + code, settings | own) == plain
    assert not (tmp_path / "of-cutile").exists()


def digests_of(code, settings):
    """Return the digest of each of the `files` of a program, which runs with settings."""
    report = "print({n: hashlib.sha256(d).hexdigest() for n, d in files.items()}, file=sys.stderr)"
    done = python("-c", code + report, **settings)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stderr.strip().splitlines()[-1])


@needs_cute
def test_a_variable_that_makes_no_sense_to_the_dsl_is_a_typed_error():
    code = COMPILE + "compiled('cute_simt', 'sm_80')"
    done = python("-c", code, CUTE_DSL_DEBUG="perhaps")
    assert "unigemm.errors.CompilationError" in done.stderr
    assert "CUTE_DSL_DEBUG" in done.stderr


@needs_cute
def test_a_compiler_of_another_cuda_version_is_refused(monkeypatch):
    from types import SimpleNamespace

    from unigemm.backends.cute import settings

    loaded = SimpleNamespace(__file__="/dsl/_cutlass_ir.cu12.cpython-311.so")
    monkeypatch.setitem(sys.modules, settings._COMPILER, loaded)
    settings.check_flavour("cu12")
    with pytest.raises(unigemm.CompilationError, match="kept as those of cu13"):
        settings.check_flavour("cu13")


@needs_cute
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_in_the_middle_of_a_compile_compiles_the_same(tmp_path):
    """Its copy of the DSL is half changed: in the same process it made other code, or hung."""
    code = """
import os, threading
import unigemm
from unigemm.backends.cute import toolchain
from unigemm.planning.registry import backend_named

spec = unigemm.ArraySpec((64, 64), "float32")
plan = unigemm.plan(spec, spec, backend="cute_simt", target="sm_80")
backend, inside, end = backend_named("cute_simt"), threading.Event(), threading.Event()

def stuck(*arguments):
    inside.set()
    end.wait()
    raise RuntimeError("of the parent")

def compile_there():
    try:
        backend.compile(plan)
    except RuntimeError:
        pass

toolchain._compile = stuck
thread = threading.Thread(target=compile_there)
thread.start()
inside.wait()
child = os.fork()
if not child:
    print(backend.compile(plan).files["kernel.cubin"].hex(), flush=True)
    os._exit(0)
status = os.waitpid(child, 0)[1]
end.set()
thread.join()
assert not toolchain.COMPILING.abandoned
raise SystemExit(status)
"""
    found = output_of("-c", code)
    spec = unigemm.ArraySpec((64, 64), "float32")
    plan = unigemm.plan(spec, spec, backend="cute_simt", target="sm_80")
    with open(unigemm.compile(plan).entry.files["kernel.cubin"], "rb") as file:
        assert found.strip() == file.read().hex()
