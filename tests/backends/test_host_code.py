"""The host code of CuTe kernels: linked once, it runs with a driver and nothing else."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
from threads import in_threads

import unigemm
from unigemm.cache import host_code
from unigemm.errors import BackendUnavailable, UnigemmError

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(host_code.missing() is not None, reason=str(host_code.missing())),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, which makes a driver"),
]

#: A driver that refuses what a thread without a context asks, as the real one does.
DRIVER = r"""
#include <stddef.h>
enum { FAILED = 719, NO_CONTEXT = 201, NO_IMAGE = 200 };
static _Thread_local void *context;
int loads, launches, shared, answer, largest[4];
struct config { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; };
int cuCtxSetCurrent(void *to) { context = to; return 0; }
int cuLibraryLoadData(void **into, const void *code, void *a, void *b, unsigned c, void *d, void *e,
                      unsigned f) {
  if (a || b || c || d || e || f || *(const unsigned *)code != 0xba55ed50) return NO_IMAGE;
  *into = &loads;
  return loads++, answer;
}
int cuLibraryGetKernel(void **into, void *library, const char *name) {
  return *into = (void *)(name[0] == '#' ? NULL : &launches), library != &loads;
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int on) {
  return *value = 16, !(attribute == 1 && kernel == &launches && on == 3);
}
int cuKernelSetAttribute(int attribute, int value, void *kernel, int on) {
  if (attribute == 8) shared = value;
  return !(kernel == &launches && on == 3);
}
int cuDeviceGetAttribute(int *value, int attribute, int on) {
  return *value = 1016, !(attribute == 97 && on == 3);
}
int cuLaunchKernelEx(struct config *given, void *kernel, void **parameters, void **extra) {
  if (!context) return NO_CONTEXT;
  if (extra || kernel != &launches || !parameters || given->stream != (void *)7) return FAILED;
  return launches++, answer;
}
int cuGetErrorName(int error, const char **name) {
  return *name = error == FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OTHER", 0;
}
"""


@pytest.fixture(scope="module")
def files():
    spec = unigemm.ArraySpec((64, 64), "float32")
    plan = unigemm.plan(spec, spec, target="sm_80", backend="cute_simt")
    entry = unigemm.compile(plan).entry
    found = {}
    for name, path in entry.files.items():
        with open(path, "rb") as file:
            found[name] = file.read()
    return found


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Put the driver above where CUDA's is loaded, with the device 3 and a context."""
    from unigemm.backends.cute import loading

    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(loading, "_DRIVER", str(library))
    monkeypatch.setattr(loading, "current_context", lambda: (3, 0xC0))
    loading._driver.cache_clear()
    yield ctypes.CDLL(str(library))
    loading._driver.cache_clear()


def value(library, name):
    return ctypes.c_int.in_dll(library, name)


def arguments(files):
    """Return arguments of a launch, for stream 7: the kernels of this test are never run."""
    from unigemm.backends.cute_simt.kernels.host import example_arguments
    from unigemm.planning.registry import backend_named

    spec = unigemm.ArraySpec((64, 64), "float32")
    plan = unigemm.plan(spec, spec, target="sm_80", backend="cute_simt")
    count = len(example_arguments(backend_named("cute_simt").oriented(plan)))
    return [*[4096] * 4, *[1] * (count - 5), 7]


def load(files):
    from unigemm.backends.cute.loading import load_kernel

    return load_kernel(files)


def test_a_kernel_is_loaded_once_before_its_first_launch(driver, files):
    run = load(files)
    assert value(driver, "loads").value == 1
    assert value(driver, "shared").value == 1016 - 16
    for _ in range(2):
        run(*arguments(files))
    assert (value(driver, "loads").value, value(driver, "launches").value) == (1, 2)


def test_a_thread_that_has_used_no_cuda_gets_the_context(driver, files):
    run = load(files)
    in_threads(lambda: run(*arguments(files)), [()] * 3)
    assert value(driver, "launches").value == 3


def test_a_launch_that_the_driver_refuses_is_a_typed_error_with_its_name(driver, files):
    run = load(files)
    value(driver, "answer").value = 719
    with pytest.raises(UnigemmError, match=r"refused to launch .*: CUDA_ERROR_LAUNCH_FAILED"):
        run(*arguments(files))


def test_a_kernel_that_the_driver_does_not_load_is_a_typed_error(driver, files):
    value(driver, "answer").value = 209
    with pytest.raises(BackendUnavailable, match=r"does not load its kernels \(CUDA_ERROR_OTHER"):
        load(files)


def test_an_artifact_without_a_shared_object_is_linked_where_there_is_a_compiler(
    driver, files, monkeypatch
):
    alone = {name: data for name, data in files.items() if name != "kernel.so"}
    load(alone)(*arguments(files))
    assert value(driver, "launches").value == 1
    monkeypatch.setattr(host_code.shutil, "which", lambda name: None)
    with pytest.raises(BackendUnavailable, match="compile it again where one is in PATH"):
        host_code.linked(alone)
    # CuTe DSL maps an object file, where it is installed.
    assert callable(load(alone))
    assert callable(load({**files, "kernel.so": b"not a shared object"}))
    from unigemm.backends.cute import toolchain

    monkeypatch.setattr(toolchain, "missing", lambda: "it is not installed")
    with pytest.raises(BackendUnavailable, match="compile it again where one is in PATH"):
        load(alone)
    with pytest.raises(BackendUnavailable, match="cannot be mapped"):
        load({**files, "kernel.so": b"not a shared object"})


def test_equal_kernels_have_equal_bytes_and_need_no_library(files, tmp_path):
    shared = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "kernel.o").write_bytes(files["kernel.o"])
        shared.append(host_code.link(folder / "kernel.o"))
    assert shared[0] == shared[1] == files["kernel.so"]
    assert b"libc.so" not in shared[0]
    assert b"libcute_dsl_runtime" not in shared[0]
