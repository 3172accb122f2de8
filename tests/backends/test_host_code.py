"""The host code of CuTe kernels: linked once, it runs with a driver and nothing else."""

from __future__ import annotations

import ctypes
import threading

import pytest
from threads import in_threads

import unigemm
from unigemm.cache import host_code
from unigemm.errors import BackendUnavailable, UnigemmError

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(host_code.missing() is not None, reason=str(host_code.missing())),
]

FAILED, NO_CONTEXT, NO_IMAGE = 719, 201, 200
CODE = bytes.fromhex("50ed55ba")  # how machine code for GPUs begins
LIBRARY, KERNEL = 0x55, 0x66
STATUS = INT = ctypes.c_int
HANDLE, INDEX = ctypes.c_void_p, ctypes.c_uint
INTO, INTO_INT = ctypes.POINTER(HANDLE), ctypes.POINTER(INT)


class FakeDriver:
    """A driver that refuses what a thread without a context asks, as the real one does."""

    def __init__(self):
        self.loads = self.launches = self.shared = self.answer = 0
        self.own = threading.local()
        kinds = {
            "launch": (HANDLE, HANDLE, HANDLE, HANDLE),
            "load": (INTO, HANDLE, HANDLE, HANDLE, INDEX, HANDLE, HANDLE, INDEX),
            "kernel": (INTO, HANDLE, ctypes.c_char_p),
            "get": (INTO_INT, INT, HANDLE, INT),
            "set": (INT, INT, HANDLE, INT),
            "device": (INTO_INT, INT, INT),
            "use": (HANDLE,),
            "error_name": (STATUS, ctypes.POINTER(ctypes.c_char_p)),
        }
        self.functions = {
            name: ctypes.CFUNCTYPE(STATUS, *kind)(getattr(self, name))
            for name, kind in kinds.items()
        }
        self.addresses = host_code.Driver(
            **{name: ctypes.cast(f, HANDLE).value for name, f in self.functions.items()}
        )

    def launch(self, config, kernel, parameters, extra):
        if getattr(self.own, "context", None) is None:
            return NO_CONTEXT
        stream = HANDLE.from_address(config + 32).value
        if extra or kernel != KERNEL or not parameters or stream != 7:
            return FAILED
        self.launches += 1
        return self.answer

    def load(self, into, code, *options):
        if any(options) or ctypes.string_at(code, 4) != CODE:
            return NO_IMAGE
        self.loads += 1
        into[0] = LIBRARY
        return self.answer

    def kernel(self, into, library, name):
        into[0] = KERNEL
        return library != LIBRARY

    def get(self, value, attribute, kernel, on):
        value[0] = 16
        return (attribute, kernel, on) != (1, KERNEL, 3)

    def set(self, attribute, value, kernel, on):
        if attribute == 8:
            self.shared = value
        return (kernel, on) != (KERNEL, 3)

    def device(self, value, attribute, on):
        value[0] = 1016
        return (attribute, on) != (97, 3)

    def use(self, context):
        self.own.context = context
        return context != 0xC0

    def error_name(self, error, name):
        name[0] = b"CUDA_ERROR_LAUNCH_FAILED" if error == FAILED else b"CUDA_ERROR_OTHER"
        return 0


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
def driver(monkeypatch):
    """Put the driver above where CUDA's is loaded, with the device 3 and a context."""
    from unigemm.backends.cute import loading

    made = FakeDriver()
    monkeypatch.setattr(loading, "_driver", lambda: made.addresses)
    monkeypatch.setattr(loading, "current_context", lambda: (3, 0xC0))
    return made


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
    assert driver.loads == 1
    assert driver.shared == 1016 - 16
    for _ in range(2):
        run(*arguments(files))
    assert (driver.loads, driver.launches) == (1, 2)


def test_a_thread_that_has_used_no_cuda_gets_the_context(driver, files):
    run = load(files)
    in_threads(lambda: run(*arguments(files)), [()] * 3)
    assert driver.launches == 3


def test_a_launch_that_the_driver_refuses_is_a_typed_error_with_its_name(driver, files):
    run = load(files)
    driver.answer = 719
    with pytest.raises(UnigemmError, match=r"refused to launch .*: CUDA_ERROR_LAUNCH_FAILED"):
        run(*arguments(files))


def test_a_kernel_that_the_driver_does_not_load_is_a_typed_error(driver, files):
    driver.answer = 209
    with pytest.raises(BackendUnavailable, match=r"does not load its kernels \(CUDA_ERROR_OTHER"):
        load(files)


def test_what_is_no_shared_object_is_a_typed_error(driver, files):
    with pytest.raises(BackendUnavailable, match="cannot be mapped"):
        load({**files, "kernel.so": b"not a shared object"})


def test_it_needs_no_library_and_holds_the_machine_code_once(files):
    shared = files["kernel.so"]
    assert shared.count(files["kernel.cubin"][:64]) == 1
    assert b"libc.so" not in shared
    assert b"libcute_dsl_runtime" not in shared
    assert len(shared) < len(files["kernel.cubin"]) + 16384
