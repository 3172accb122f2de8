"""Tune a product, and ship its kernel to machines that then compile nothing.

The commands are `unigemm tune`, `unigemm compile`, `unigemm cache export` and `cache import`. Here
they fill a cache of their own, as if this were the machine that builds, and then another one.

These need ``unigemm[cuda]`` for cutile, ``unigemm[cute]`` for the CuTe backends.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import unigemm

SIZE = ("1024", "1024", "512")


def command(*words, **variables):
    """Run unigemm with variables in its environment, and return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "unigemm", *words, "--json"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    made = json.loads(done.stdout)
    if "error" in made:  # a sentence that ends with what would work
        sys.exit(made["error"]["message"])
    return made


devices = unigemm.capabilities().devices
target = devices[0].target.arch if devices else "sm_89"

with tempfile.TemporaryDirectory() as folder:
    tuning, bundle = Path(folder, "tuning.json"), Path(folder, "kernels.tar.gz")
    if devices:
        plan = command("tune", *SIZE, "--file", str(tuning))
        print("tuned:", plan["backend"], f"{plan['measured_us']:.1f} us")

    # On the machine that builds: compile, and write one architecture's kernels to a bundle.
    command("compile", *SIZE, "--target", target, "--backend", "cute_simt")
    made = command("cache", "export", str(bundle), "--target", target, "--digest")
    print("exported for", target, "kernels:", made["entries"] > 0)

    # On the other one: take in what has the digest that you were told, and nothing else.
    there = {"UNIGEMM_CACHE_DIR": str(Path(folder, "there")), "UNIGEMM_TUNING": str(tuning)}
    taken = command("cache", "import", str(bundle), "--expect", made["digest"], **there)
    print("taken in all:", taken["imported"] == made["entries"])
