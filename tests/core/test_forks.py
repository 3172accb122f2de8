"""A fork while other threads work: the child goes on; and a wait for another process ends."""

from __future__ import annotations

import ast
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import call_path
import pytest
from processes import python
from test_cache import fake_artifact, fake_key, is_whole, never

from unigemm.cache import Cache, waiting
from unigemm.errors import CacheWarning
from unigemm.support import forks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]


def in_child(check):
    """Return the status of a forked child that runs a check; a hang is ended by a signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@contextmanager
def elsewhere(work):
    """Run work in another thread up to where it calls its argument, until the block ends."""
    inside, end = threading.Event(), threading.Event()

    def pause():
        inside.set()
        end.wait()

    thread = threading.Thread(target=work, args=(pause,))
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_lock_that_another_thread_holds_is_free_in_the_child_and_held_in_the_parent():
    lock = forks.Lock()

    def hold(pause):
        with lock:
            pause()

    def check():
        with lock:
            return lock.abandoned

    with elsewhere(hold):
        assert in_child(check) == 0
        assert lock.locked()
        assert not lock.abandoned
    assert not lock.locked()


def test_a_lock_that_the_forking_thread_holds_is_held_in_the_child_until_it_lets_go():
    lock = forks.Lock()
    with lock:
        child = os.fork()
        if child == 0:
            held = lock.locked()
    if child == 0:
        os._exit(not (held and not lock.locked() and not lock.abandoned))
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_does_not_wait_for_ever_for_what_holds_it_back(monkeypatch):
    done = []

    def hold(pause):
        with forks.held_back():
            pause()
            done.append(True)

    with elsewhere(hold):
        monkeypatch.setattr(forks, "_PATIENCE_S", 0.05)

        def check():
            with forks.held_back():  # anew in the child
                return not done

        assert in_child(check) == 0


def test_a_fork_finds_done_what_held_it_back():
    inside, done = threading.Event(), []

    def work():
        with forks.held_back():
            inside.set()
            time.sleep(0.2)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    assert in_child(lambda: done) == 0
    thread.join()


def test_a_fork_inside_what_holds_forks_back_goes_on():
    with forks.held_back():
        assert in_child(lambda: True) == 0
    assert in_child(lambda: True) == 0


def test_every_lock_of_the_package_knows_of_forks():
    """One made by `threading` stays locked in a child; nor is `functools.cached_property` free."""
    for path in [*(ROOT / "unigemm").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]:
        if path.name == "forks.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                made = f"{node.value.id}.{node.attr}"
                assert made not in {
                    f"threading.{kind}"
                    for kind in ("Lock", "RLock", "Condition", "Semaphore", "Event", "Barrier")
                }, f"{path}: {made}"
            elif isinstance(node, ast.ImportFrom) and node.module in ("functools", "threading"):
                names = {alias.name for alias in node.names}
                assert not names & {"cached_property", "Lock", "RLock", "Condition"}, path


def test_cached_properties_are_made_once_and_read_on_the_class():
    class Made:
        calls = 0

        @forks.cached_property
        def value(self):
            """Say it."""
            self.calls += 1
            return 7

    made = Made()
    assert (made.value, made.value, made.calls) == (7, 7, 1)
    assert isinstance(Made.value, forks.cached_property)
    assert Made.value.__doc__ == "Say it."


def test_a_child_multiplies_while_a_thread_of_its_parent_loads_the_same_kernel(
    monkeypatch, tmp_path
):
    pytest.importorskip("cupy", reason="CuPy is not installed")
    import numpy as np
    from fake_gpu import host, install

    import unigemm

    driver, backend = install(monkeypatch, tmp_path)
    monkeypatch.setattr(forks, "_PATIENCE_S", 0.05)
    load = backend.load
    a, b = driver.ones((3, 4)), driver.ones((4, 5))

    def work(pause):
        def slow(files, plan):
            pause()
            return load(files, plan)

        backend.load = slow
        unigemm.matmul(a, b)

    def check():
        backend.load = load
        return bool(np.all(host(unigemm.matmul(a, b)) == 4))

    try:
        with elsewhere(work):
            assert in_child(check) == 0
    finally:
        call_path.forget_kernels()


FIRST_CALLS = """
import os, signal, sys, threading, time
import numpy as np
import unigemm

a = np.eye(4, dtype="float32")


def call():
    unigemm.plan(a, a).to_dict()
    return bool((unigemm.matmul(a, a) == a).all())


thread = threading.Thread(target=call)
thread.start()
time.sleep(float(sys.argv[1]))
child = os.fork()
if child == 0:
    signal.alarm(100)  # ends a child that waits for ever
    os._exit(not call())
thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("delay", [0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.2, 0.3, 0.4])
def test_a_child_multiplies_whose_parent_forks_in_the_first_call_of_a_thread(delay):
    done = python("-W", "ignore", "-c", FIRST_CALLS, delay, cwd=ROOT, OPENBLAS_NUM_THREADS=1)
    assert done.returncode == 0, done.stderr


def test_no_work_that_holds_forks_back_begins_while_a_process_forks(monkeypatch):
    """Not between the last look at who holds forks back and the fork itself."""
    begun, held = threading.Event(), []
    wait = threading.Event.wait

    def work():
        with forks.held_back():
            begun.set()

    def look(event, patience=None):  # what the fork does while it waits
        monkeypatch.setattr(threading.Event, "wait", wait)
        thread = threading.Thread(target=work)
        thread.start()
        held.append((thread, begun.wait(0.2)))
        return wait(event, patience)

    def first(pause):
        with forks.held_back():
            pause()

    with elsewhere(first):
        monkeypatch.setattr(forks, "_PATIENCE_S", 0.05)
        monkeypatch.setattr(threading.Event, "wait", look)
        status = in_child(lambda: True)
        monkeypatch.undo()
    assert status == 0
    ((thread, early),) = held
    assert not early
    thread.join()
    assert begun.is_set()


# Waiting for another process.


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(waiting, "NOTICE_S", 0.05)
    monkeypatch.setattr(waiting, "UNWELL_S", 0.1)


HOLD = """
import os, signal, sys, time
from filelock import FileLock
with FileLock(sys.argv[1], mode=0o600):
    print("held", flush=True)
    if sys.argv[2] == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdin.read()
"""


@contextmanager
def holder(cache, key, what):
    """Have another process hold the lock of a key, until the block ends or `let_go` is called."""
    cache.folder.lock(key.digest).acquire().lock.release()  # makes the folder
    path = cache.root / ".locks" / f"{key.digest}.lock"
    command = [sys.executable, "-c", HOLD, str(path), what]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.stdin.close()
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
        process.wait()
        process.stdout.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="who holds a lock is read from /proc")
def test_a_stopped_process_is_waited_for_no_longer(tmp_path, brief, caplog):
    cache, key = Cache(tmp_path / "c", []), fake_key()
    with holder(cache, key, "stops") as process:
        while waiting._ailment(process.pid) != "stopped":
            time.sleep(0.01)
        with pytest.warns(CacheWarning, match=f"process {process.pid}.*is stopped"):
            assert is_whole(cache.get_or_compile(key, fake_artifact))
    assert f"waiting for process {process.pid} to compile kernel {key.digest[:16]}" in caplog.text
    assert is_whole(Cache(tmp_path / "c", []).get_or_compile(key, never))


def test_a_wait_ends_when_its_time_is_up(tmp_path, brief, caplog, monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.3)
    monkeypatch.setattr(waiting, "_LOCKS", tmp_path / "not-linux")
    cache, key = Cache(tmp_path / "c", []), fake_key()
    with holder(cache, key, "works"), pytest.warns(CacheWarning, match="waited for no longer"):
        assert is_whole(cache.get_or_compile(key, fake_artifact))
    assert "waiting for another process" in caplog.text


def test_a_live_process_is_waited_for_and_it_is_said(tmp_path, brief, caplog):
    cache, key = Cache(tmp_path / "c", []), fake_key()
    with holder(cache, key, "works") as process:

        class Ends(logging.Handler):
            def emit(self, record):  # it is said: now the other may end
                threading.Timer(0.3, process.stdin.close).start()

        logger, handler = logging.getLogger("unigemm"), Ends()
        logger.addHandler(handler)
        try:
            assert is_whole(cache.get_or_compile(key, fake_artifact))
        finally:
            logger.removeHandler(handler)
        assert process.wait() == 0
    assert "waiting for" in caplog.text


@pytest.mark.parametrize(
    ("stat", "ailment"),
    [
        ("12 (a (b) T) S 1", None),
        ("12 (python) T 1", "stopped"),
        ("12 (python) t 1", "stopped by a debugger"),
        ("12 (python) Z 1", "dead"),
    ],
)
def test_the_state_of_a_process_is_read_behind_its_name(monkeypatch, stat, ailment):
    monkeypatch.setattr(Path, "read_text", lambda path: stat)
    assert waiting._ailment(12) == ailment


def test_a_process_that_is_no_more_is_dead(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert waiting._ailment(process.pid) == ("dead" if Path("/proc/self").exists() else None)
