"""Fake kernels for the cache's tests; run as a program, one process that requests one of them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

from unigemm.cache import Cache, Entry
from unigemm.cache.artifact import Artifact, KernelInfo, KernelKey

META = "meta.json"


def fake_key(name: str = "gemm", backend: str = "fake", arch: str = "sm_90a") -> KernelKey:
    return KernelKey(backend, arch, {"name": name, "tile": [64, 64, 8]}, "source", {"cc": "1.0"})


def fake_bytes(name: str, size: int = 600) -> bytes:
    block = hashlib.sha256(name.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def fake_artifact(name: str = "gemm", size: int = 600) -> Artifact:
    files = {"kernel.o": fake_bytes(name, size), "kernel.cubin": fake_bytes(name + "2", size // 2)}
    return Artifact(files, KernelInfo(64, 2048, 0, 0.25))


class Compiler:
    """Compiles a fake kernel and counts how often it was called."""

    def __init__(self, name: str = "gemm", size: int = 600, seconds: float = 0.0) -> None:
        self.name, self.size, self.seconds = name, size, seconds
        self.calls = 0

    def __call__(self) -> Artifact:
        self.calls += 1
        time.sleep(self.seconds)
        return fake_artifact(self.name, self.size)


def never() -> Artifact:
    raise AssertionError("a kernel was compiled that a layer of the cache holds")


def is_whole(entry: Entry, artifact: Artifact | None = None) -> bool:
    """Whether the entry's files hold exactly what was compiled."""
    expected = (artifact or fake_artifact()).files
    return {n: Path(p).read_bytes() for n, p in entry.files.items()} == dict(expected)


def fill(root: Path, *names: str, size: int = 600, **key: str) -> list[Entry]:
    """Compile fake kernels into a cache; another process's, as far as later caches can tell."""
    cache = Cache(root, [])
    return [cache.get_or_compile(fake_key(n, **key), Compiler(n, size)) for n in names]


def worker(*arguments: str | Path, stdin: int | None = None) -> subprocess.Popen[str]:
    """Start this file as a program."""
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    )


def _churn(root: str, seed: str) -> None:
    """Use, prune, clear and verify one folder at random; a warning or a wrong kernel fails."""
    warnings.simplefilter("error")
    dice = random.Random(seed)
    for _ in range(150):
        cache = Cache(Path(root), [], limit_bytes=8000)
        name = str(dice.randrange(12))
        action = dice.random()
        if action < 0.8:
            entry = cache.get_or_compile(fake_key(name), Compiler(name))
            # Only an explicit prune or clear elsewhere takes an entry this soon.
            with suppress(FileNotFoundError):
                assert is_whole(entry, fake_artifact(name))
        elif action < 0.9:
            cache.prune(dice.randrange(10_000))
        elif action < 0.95:
            cache.clear()
        else:
            assert cache.verify(repair=True).damaged == ()
    print("sound", flush=True)


def _main(mode: str, root: str, log: str) -> None:
    cache = Cache(Path(root), [])

    def compile() -> Artifact:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        if mode == "die-compiling":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "hang-compiling":
            print("compiling", flush=True)
            time.sleep(3600)
        time.sleep(0.2)
        return fake_artifact()

    real_replace, real_fsync = os.replace, os.fsync

    def dying_replace(source: str, target: str) -> None:
        if mode == "die-after-publishing":
            real_replace(source, target)
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)

    if mode in ("die-publishing", "die-after-publishing"):
        os.replace = dying_replace  # type: ignore[assignment]
    if mode == "die-writing":
        os.fsync = dying_fsync  # type: ignore[assignment]
    if mode == "race":
        print("ready", flush=True)
        sys.stdin.readline()
    entry = cache.get_or_compile(fake_key(), compile)
    report = {"cached": entry.cached, "layer": entry.layer, "whole": is_whole(entry)}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "churn":
        _churn(*sys.argv[2:])
    else:
        _main(*sys.argv[1:])
