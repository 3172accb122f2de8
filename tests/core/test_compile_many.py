"""Many kernels at once: in processes of their own, of which none is left behind."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import call_path
import numpy as np
import pytest
from cache_fakes import fake_artifact
from call_path import compile_many, kernel_name, second_passes_of

import unigemm
from unigemm import cache
from unigemm.planning.compile_process import CompileProcess
from unigemm.planning.select import usable_backend
from unigemm.problem.dtypes import DType


@pytest.fixture
def plans(monkeypatch, tmp_path):
    """Four plans with a kernel each, and an empty cache."""
    kept = cache.Cache(tmp_path, [])
    monkeypatch.setattr(cache, "default_cache", lambda: kept)
    a, b = unigemm.ArraySpec((64, 64), "float32"), unigemm.ArraySpec((64, 64), "float32")
    first = unigemm.plan(a, b, target="sm_90a", backend="cute_simt", keep=40)
    found = {}
    for plan in (first.taking(each) for each in (first.as_alternative, *first.alternatives)):
        found.setdefault(kernel_name(plan), plan)
    return list(found.values())[:4]


class Posing:
    """Poses as the process: compiles nothing."""

    made: ClassVar[list[Posing]] = []
    refused: ClassVar[str] = ""

    def __init__(self):
        self.made.append(self)
        self.lives, self.compiled = True, []

    def compile(self, plan):
        assert self.lives
        self.compiled.append(plan)
        if kernel_name(plan) == self.refused:
            raise unigemm.CompilationError("no registers are left")
        return fake_artifact()

    def close(self):
        self.lives = False


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(Posing, "made", [])
    monkeypatch.setattr(Posing, "refused", "")
    call_path.compile_in(monkeypatch, Posing)
    return Posing.made


def test_each_kernel_is_compiled_once_and_what_is_there_takes_no_process(plans, processes):
    told = []
    made = list(compile_many([*plans, *plans], 3, lambda *step: told.append(step)))
    assert {kernel_name(plan) for plan, _ in made} == {*map(kernel_name, plans)}
    assert not any(entry.cached for _, entry in made)
    assert sum(len(each.compiled) for each in processes) == 4
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert not any(each.lives for each in processes)
    processes.clear()
    assert all(entry.cached for _, entry in compile_many(plans, 3))
    assert not processes


def test_a_kernel_that_does_not_compile_takes_no_other_with_it(plans, processes):
    Posing.refused = kernel_name(plans[1])
    split = replace(plans[3], config=replace(plans[3].config, split_k=-1))
    found = list(compile_many([split, *plans[:3]], 2))
    errors = [entry for _, entry in found if isinstance(entry, unigemm.UnigemmError)]
    assert [type(error).__name__ for error in errors] == ["UnsupportedProblem", "CompilationError"]
    assert len(found) == 4


def test_second_passes_of_one_product_are_all_compiled(plans, processes, monkeypatch):
    """What rounds the rows of a product is no part of the product's own kernel."""
    call_path.compile_roundings(monkeypatch, lambda kernel: fake_artifact(str(kernel)))
    x, w = (unigemm.ArraySpec((64, 64), "bfloat16") for _ in "ab")
    plain = unigemm.plan(x, w, target="sm_90a", backend="cute_simt")
    e4m3, e5m2 = (
        replace(plain, problem=replace(plain.problem, quantized_rows=dtype, quantized_by="row"))
        for dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
    )
    assert len({*map(kernel_name, (plain, e4m3, e5m2))}) == 1
    found = {kernel_name(plan): entry for plan, entry in compile_many([*plans, e4m3, e5m2], 3)}
    assert not found[kernel_name(plain)].cached
    compiled = [kernel_name(plan) for each in processes for plan in each.compiled]
    assert sorted(compiled) == sorted(found)
    kept = cache.default_cache()
    assert all(
        kept.get(each.key) is not None for plan in (e4m3, e5m2) for each in second_passes_of(plan)
    )


def test_a_single_kernel_is_compiled_here(plans, processes, monkeypatch):
    backend = usable_backend("cute_simt")
    here = []
    monkeypatch.setattr(
        type(backend), "compile", lambda self, plan: here.append(plan) or fake_artifact()
    )
    ((plan, _),) = compile_many(plans[:1], 8)
    assert here == [plan]
    list(compile_many(plans[1:], 1))
    assert len(here) == 4
    assert not processes


def test_an_interrupt_ends_all_processes(plans, processes):
    def interrupt(done, of):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(compile_many(plans, 2, interrupt))
    assert processes
    assert not any(each.lives for each in processes)


def test_what_a_thread_cannot_handle_is_raised_to_the_caller(plans, monkeypatch):
    def no_more_processes():
        raise OSError("no process can be started")

    call_path.compile_in(monkeypatch, no_more_processes)
    found = [entry for _, entry in compile_many(plans, 2)]
    assert all("no process can be started" in str(entry) for entry in found)


def test_a_process_says_what_a_backend_raised_and_ends_with_its_last_words():
    host = unigemm.plan(np.eye(4), np.eye(4))  # of a backend that compiles nothing
    with closing(CompileProcess()) as process:
        for _ in range(2):
            with pytest.raises(unigemm.CompilationError, match="NotImplementedError"):
                process.compile(host)
        assert process.lives
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(unigemm.CompilationError, match="has ended: SIGKILL"):
            process.compile(host)
        assert not process.lives
    with pytest.raises(unigemm.CompilationError, match="has ended"):
        process.compile(host)


def test_what_imports_pass_over_in_the_path_is_not_sent(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.path", [tmp_path, str(tmp_path / "it's mine"), *sys.path])
    host = unigemm.plan(np.eye(4), np.eye(4))
    with (
        closing(CompileProcess()) as process,
        pytest.raises(unigemm.CompilationError, match="NotImplementedError"),
    ):
        process.compile(host)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no process groups")
def test_a_compiler_that_a_process_started_ends_with_it(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nsleep 60 &\necho\nwait\n")
    script.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(script))
    with closing(CompileProcess()) as process:
        answers = os.dup(process._process.stdout.fileno())
        assert os.read(answers, 1) == b"\n"
    with open(answers, "rb", buffering=0) as file:
        assert select.select([file], [], [], 10)[0]
        assert file.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="the script is a shell's")
def test_temporary_files_of_a_process_that_is_killed_go_with_it(monkeypatch, tmp_path):
    script, folder = tmp_path / "python", tmp_path / "tmp"
    script.write_text('#!/bin/sh\nmktemp -d -p "$TMPDIR"\nsleep 60\n')
    script.chmod(0o700)
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("sys.executable", str(script))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    with closing(CompileProcess()) as process:
        made = Path(os.fsdecode(process._process.stdout.readline().rstrip()))
        assert made.is_dir()
        assert folder in made.parents
    assert not list(folder.iterdir())


def test_a_process_ends_when_nobody_asks_any_more():
    with closing(CompileProcess()) as process:
        process._process.stdin.close()
        assert process._process.wait() == 0
        assert process._process.stdout.read() == b""
