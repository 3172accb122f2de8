"""What is installed: the explicit package list equals the tree, and a wheel holds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from processes import output_of, python

ROOT = Path(__file__).parents[2]


def settings():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def initialisers():
    """Return the `__init__.py` of every package."""
    return {path for top in ("unigemm", "backends") for path in (ROOT / top).rglob("__init__.py")}


def untracked():
    """Return the files that git does not know yet: work that is not yet part of the package."""
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive: all of it counts
        return set()
    return {ROOT / line for line in done.stdout.splitlines()}


def packages(paths):
    folders = (path.parent.relative_to(ROOT).parts for path in paths)
    return {".".join(("unigemm", *parts) if parts[0] == "backends" else parts) for parts in folders}


def test_the_package_list_is_the_tree():
    listed = settings()["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert packages(initialisers() - untracked()) <= set(listed) <= packages(initialisers())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy, so that nothing is left behind in the tree."""
    pytest.importorskip("pip")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("unigemm", "backends", "tests", "bench"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    out = tmp_path_factory.mktemp("wheel")
    done = python(
        *("-m", "pip", "wheel", "--no-deps", "--no-build-isolation"),
        *("--no-index", "-q", "-w", out, source),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (path,) = out.glob("unigemm-*.whl")
    return path


def test_a_wheel_holds_every_module_once_and_nothing_else(wheel):
    listed = set(settings()["tool"]["setuptools"]["packages"])
    expected = {"unigemm/py.typed"}
    expected |= {f"unigemm/planning/data/{name}" for name in ("cost_model.json", "corrections.npz")}
    for package in sorted(listed):
        parts = package.split(".")
        folder = ROOT.joinpath(*(parts[1:] if parts[1:2] == ["backends"] else parts))
        expected |= {f"{'/'.join(parts)}/{path.name}" for path in folder.glob("*.py")}
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert "unigemm/backends/cute_simt/kernels/gemm.py" in names
    assert sorted(names) == sorted(expected)


def test_an_installed_wheel_multiplies_without_the_tree(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    product = "unigemm.matmul(numpy.eye(3), 2.0 * numpy.eye(3))[2, 2]"
    code = f"import numpy, unigemm; print(unigemm.__file__, {product})"
    found = output_of("-c", code, cwd=tmp_path, PYTHONPATH=tmp_path)
    assert found.split() == [str(tmp_path / "unigemm" / "__init__.py"), "2.0"]


def test_the_core_needs_no_package_of_an_extra():
    """As on macOS and Windows: CUDA's packages, CuPy and `pwd` cannot be imported."""
    script = ROOT / "tests" / "core" / "bare_core.py"
    assert output_of(script, "--hide", PYTHONPATH=ROOT).split() == ["ok"]


@pytest.mark.parametrize("where", ["beside the clone", "in the clone", "elsewhere"])
def test_an_editable_install_is_found_from_any_folder(where, tmp_path):
    """By its one path entry: a folder named unigemm beside the script must not hide the package."""
    clone = tmp_path / "unigemm"
    shutil.copytree(ROOT / "unigemm", clone / "unigemm", ignore=shutil.ignore_patterns("__pyc*"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = {"beside the clone": tmp_path, "in the clone": clone, "elsewhere": elsewhere}[where]
    # An editable install adds the clone to the path, behind the working folder.
    code = f"import sys; sys.path.insert(1, {str(clone)!r}); import unigemm; "
    code += "print(unigemm.__file__, unigemm.matmul.__name__)"
    found = output_of("-c", code, cwd=folder, PYTHONPATH=None)
    assert found.split() == [str(clone / "unigemm" / "__init__.py"), "matmul"]


def test_the_link_to_the_backends_is_in_the_tree():
    link = ROOT / "unigemm" / "backends"
    assert link.resolve() == (ROOT / "backends").resolve()
    assert os.readlink(link) == "../backends"


def test_the_licence_and_the_extras_are_stated(wheel):
    info = f"unigemm-{settings()['project']['version']}.dist-info"
    metadata = zipfile.ZipFile(wheel).read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    extras = {line.split()[1] for line in metadata.splitlines() if line.startswith("Provides-Ex")}
    assert extras == {
        *("cuda", "run", "cute", "cutile", "cupy", "plot", "fit", "bench", "all", "docs", "dev"),
        *("torch", "jax"),
    }
    names = zipfile.ZipFile(wheel).namelist()
    assert f"{info}/licenses/LICENSE" in names


def test_the_command_is_installed():
    commands = entry_points(group="console_scripts", name="unigemm")
    from unigemm.cli.main import main

    assert {command.load() for command in commands} == {main}
