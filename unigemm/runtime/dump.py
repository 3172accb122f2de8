"""``UNIGEMM_DUMP``: write the code and the plans of everything that runs into a folder.

Each kernel has a folder, ``<backend>-<architecture>-<digest>``, with its PTX (if the compiler makes
any), its SASS, and one plan for each product that it was bound to.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from ..errors import SettingWarning, UnigemmError
from ..planning.plan import Plan
from ..support import env

__all__ = ["dump"]


def dump(plan: Plan, digest: str, files: Mapping[str, bytes]) -> None:
    """Write the kernel that is about to run, and its plan, if ``UNIGEMM_DUMP`` names a folder.

    Parameters
    ----------
    plan
        Plan of the product.
    digest, files
        Digest and files of the kernel; empty on the host.
    """
    top = env.dump_dir()
    if top is None:
        return
    folder = top / "-".join(filter(None, (plan.backend, plan.target.arch, digest[:16])))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = plan.to_json()
        sizes = f"{plan.extents.batch}x" if plan.extents.batch > 1 else ""
        sizes += f"{plan.extents.m}x{plan.extents.n}x{plan.extents.k}"
        name = f"plan-{sizes}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        _write(folder / f"{name}.json", text)
        _write(folder / f"{name}.txt", plan.explain() + "\n")
        for file, data in files.items():
            _dump_code(folder, file, data)
    except OSError as error:
        _complain(f"{folder} cannot be written ({error}); name a folder that can be")


def _dump_code(folder: Path, name: str, data: bytes) -> None:
    if name.endswith(".ptx"):
        _write(folder / name, data.decode())
    elif name.endswith(".cubin"):
        from ..cache import sass

        target = (folder / name).with_suffix(".sass")
        try:
            if not target.exists():
                _write(target, sass.disassemble(data))
        except UnigemmError as error:
            _complain(f"there is no SASS of {name}: {error}")


def _write(path: Path, text: str) -> None:
    """Write a file atomically; a link of that name is replaced, not followed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".unigemm-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _complain(reason: str) -> None:
    warnings.warn(f"UNIGEMM_DUMP: {reason}", SettingWarning, stacklevel=5)
