"""What the environment may say, and what it may lack."""

from __future__ import annotations

import compileall
import importlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import call_path
import numpy as np
import pytest
from cache_fakes import Compiler, fake_key, fill, never
from call_path import dump
from processes import python

import unigemm
from unigemm.cache import Cache, sass
from unigemm.errors import (
    BackendUnavailable,
    CacheError,
    CacheWarning,
    CompilationError,
    SettingWarning,
)
from unigemm.support import env, log

PRODUCT = "import numpy, unigemm; print(unigemm.matmul(numpy.eye(3), 2 * numpy.eye(3)).sum())"
FOLDERS = ("UNIGEMM_CACHE_DIR", "UNIGEMM_CACHE_BUNDLES", "UNIGEMM_TUNING", "UNIGEMM_DUMP")
HOMELESS = ("~nosuchuser", "~nosuchuser/x")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in env.VARIABLES:
        if name != "UNIGEMM_CACHE_DIR":
            monkeypatch.delenv(name, raising=False)


def run(code, *flags, **environment):
    """Run code in a process of its own, outside of the tree."""
    return python(*flags, "-c", code, cwd=os.path.abspath(os.sep), **environment)


def test_one_table_has_all_variables_that_the_code_reads():
    root = Path(unigemm.__file__).parent
    texts = [path.read_text() for path in root.rglob("*.py")]
    texts += [path.read_text() for path in (root / "backends").resolve().rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"UNIGEMM_[A-Z][A-Z_]*[A-Z]", text)}
    assert named - {"UNIGEMM_TEST"} == set(env.VARIABLES)


@pytest.mark.parametrize("name", env.VARIABLES)
@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_a_blank_variable_is_as_one_that_is_not_set(name, text, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    absent = env.setting(name)
    monkeypatch.setenv(name, text)
    assert env.setting(name) == absent
    assert absent.source == "default"


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("text", HOMELESS)
def test_a_home_folder_that_nobody_has_is_one_warning(name, text, monkeypatch):
    monkeypatch.setenv(name, text)
    found = env.setting(name)
    assert found.source == "refused"
    assert "absolute path" in found.problem
    assert not found.value
    read = {
        "UNIGEMM_CACHE_DIR": env.cache_dir,
        "UNIGEMM_CACHE_BUNDLES": env.bundle_dirs,
        "UNIGEMM_TUNING": env.tuning_files,
        "UNIGEMM_DUMP": env.dump_dir,
    }[name]
    with pytest.warns((CacheWarning, SettingWarning), match=f"{name}: .*nosuchuser"):
        read()


def test_of_a_list_what_can_be_used_is_used(monkeypatch, tmp_path):
    items = ["", str(tmp_path), " ", "~nosuchuser/x", "/b", ""]
    monkeypatch.setenv("UNIGEMM_CACHE_BUNDLES", os.pathsep.join(items))
    with pytest.warns(CacheWarning, match="nosuchuser"):
        assert env.bundle_dirs() == (tmp_path, Path("/b"))
    assert env.setting("UNIGEMM_CACHE_BUNDLES").source == "environment"


@pytest.fixture
def nobody(monkeypatch):
    """Make this user one without an entry in the table of users."""
    pwd = pytest.importorskip("pwd")

    def none(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", none)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.mark.parametrize("home", [None, "", "relative", "./x", "~"])
def test_without_a_home_folder_there_is_no_cache(home, nobody, monkeypatch):
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("UNIGEMM_CACHE_DIR")
    with pytest.warns(CacheWarning, match=r"process only; set UNIGEMM_CACHE_DIR"):
        assert env.cache_dir() is None
    for text in ("~/kernels", "~"):
        monkeypatch.setenv("UNIGEMM_CACHE_DIR", text)
        with pytest.warns(CacheWarning, match=r"absolute path.*process only"):
            assert env.cache_dir() is None
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", "/absolute")
    assert env.cache_dir() == Path("/absolute")


@pytest.mark.parametrize(
    "text", ["9" * 400, "1" + "0" * 5000, "9" * 400 + "T", "9223372036854775808"]
)
def test_a_size_of_many_digits_is_refused_as_others_are(text, monkeypatch):
    monkeypatch.setenv("UNIGEMM_CACHE_SIZE", text)
    with pytest.warns(CacheWarning, match=r"2\*\*63") as caught:
        assert env.cache_limit_bytes() == env.DEFAULT_LIMIT_BYTES
    assert len(str(caught[0].message)) < 200
    assert env.setting("UNIGEMM_CACHE_SIZE").source == "refused"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0" * 400 + "7", 7), ("9223372036854775807", 2**63 - 1), ("1." + "5" * 400 + "K", 1592)],
)
def test_a_size_is_read_exactly(text, size):
    assert env.parse_size(text) == size


@pytest.mark.parametrize("text", ["٣", "1_000", "²", "1\n2", "\udcff", "inf"])
def test_other_digits_are_no_size(text, monkeypatch):
    monkeypatch.setenv("UNIGEMM_CACHE_SIZE", text)
    with pytest.warns(CacheWarning, match="no size"):
        assert env.cache_limit_bytes() == env.DEFAULT_LIMIT_BYTES


def test_bytes_that_are_no_text_and_line_breaks_are_names_like_others(monkeypatch, tmp_path):
    for name in ("\udcff", "a\nb", "a b"):
        monkeypatch.setenv("UNIGEMM_CACHE_DIR", str(tmp_path / name))
        fill(env.cache_dir(), "x")
        assert len(Cache().entries()) == 1


def test_a_relative_path_without_a_working_folder_is_a_warning(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", "kernels")
    monkeypatch.setenv("UNIGEMM_DUMP", "dump")
    with pytest.warns(CacheWarning, match="the working folder is gone"):
        assert env.cache_dir() is None
    with pytest.warns(SettingWarning, match="the working folder is gone"):
        assert env.dump_dir() is None


@pytest.mark.parametrize(
    "environment",
    [
        {"UNIGEMM_CACHE_DIR": "~nosuchuser", "UNIGEMM_TUNING": "~nosuchuser:::"},
        {"UNIGEMM_CACHE_SIZE": "9" * 400, "UNIGEMM_LOG": "loud", "UNIGEMM_DUMP": "~nosuchuser/x"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_products_on_the_host_need_nothing_of_the_environment(environment):
    done = run(PRODUCT, **{"UNIGEMM_CACHE_DIR": None, "XDG_CACHE_HOME": None, **environment})
    assert done.stdout == "6.0\n", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="users are POSIX's")
def test_a_user_without_a_home_multiplies():
    nobody = "import pwd; pwd.getpwuid = lambda uid: {}[uid]; "
    done = run(nobody + PRODUCT, HOME=None, XDG_CACHE_HOME=None, UNIGEMM_CACHE_DIR=None)
    assert done.stdout == "6.0\n", done.stderr
    assert "there is no home folder" in done.stderr


def test_where_there_is_no_folder_kernels_are_kept_for_the_process(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_CACHE_DIR", "~nosuchuser")
    with pytest.warns(CacheWarning, match="process only"):
        cache = Cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entry = cache.get_or_compile(fake_key("a"), Compiler("a"))
        assert entry.layer == "temporary"
        assert cache.get(fake_key("a")).files == entry.files
        assert cache.stats().layers[-1].problem == "has no folder"
        assert cache.prune(0).entries == cache.clear().entries == 0
        assert cache.entries() == []
    with pytest.raises(CacheError, match="has no folder"):
        cache.import_bundle(tmp_path)


def test_the_log_says_nothing_unless_it_is_asked_for(capfd):
    unigemm.matmul(np.eye(7), np.eye(7))
    assert capfd.readouterr().err == ""
    assert any(isinstance(x, logging.NullHandler) for x in log.LOG.handlers)


def test_the_log_says_what_was_picked_and_why(caplog):
    with caplog.at_level(logging.INFO, "unigemm"):
        unigemm.matmul(np.eye(9), np.eye(9))
        (pick,) = [x.getMessage() for x in caplog.records if "picked" in x.getMessage()]
        assert "picked numpy" in pick
        assert "assumed, limited by" in pick
        caplog.clear()
        unigemm.matmul(np.eye(9), np.eye(9))
        assert not caplog.records  # nothing on the hot path


def test_the_log_says_what_was_compiled_found_and_evicted(caplog, tmp_path):
    with caplog.at_level(logging.DEBUG, "unigemm"):
        (entry,) = fill(tmp_path, "a")
        Cache(tmp_path, ()).get(fake_key("a"))
        Cache(tmp_path, ()).prune(0)
    said = [record.getMessage() for record in caplog.records]
    digest = entry.digest[:16]
    assert [x for x in said if f"compiled fake {digest} for sm_90a in " in x]
    assert [x for x in said if f"found fake {digest} in {tmp_path}" in x]
    assert [x for x in said if x.startswith("evicted 1 kernels")]


@pytest.mark.parametrize("level", ["info", "DEBUG"])
def test_the_variable_puts_the_log_on_stderr(level):
    done = run(PRODUCT, UNIGEMM_LOG=level)
    assert done.stdout == "6.0\n"
    assert done.stderr.count("picked numpy") == 1
    assert ("the plan in full" in done.stderr) == (level != "info")


@pytest.mark.parametrize("text", ["loud", "2"])
def test_a_level_or_switch_that_is_none_is_a_warning(text, monkeypatch):
    monkeypatch.setenv("UNIGEMM_LOG", text)
    monkeypatch.setenv("UNIGEMM_COMPILE", text)
    monkeypatch.setenv("UNIGEMM_AUTOTUNE", text)
    with pytest.warns(SettingWarning, match="UNIGEMM_LOG: .*info or debug"):
        assert env.log_level() is None
    with pytest.warns(SettingWarning, match="UNIGEMM_COMPILE: .*auto, never or always"):
        assert env.compiling() == "auto"
    with pytest.warns(SettingWarning, match="UNIGEMM_AUTOTUNE: .*1 or 0"):
        assert env.autotune() is False


def spec(*shape):
    return unigemm.ArraySpec(shape, "bfloat16")


def test_the_named_backend_stands_in_for_auto_and_an_argument_wins(monkeypatch):
    operands = spec(128, 128), spec(128, 128)
    monkeypatch.setenv("UNIGEMM_BACKEND", "cute_simt")
    assert unigemm.plan(*operands, target="sm_90a").backend == "cute_simt"
    named = unigemm.plan(*operands, target="sm_90a", backend="cute_wgmma")
    assert named.backend == "cute_wgmma"
    monkeypatch.setenv("UNIGEMM_BACKEND", "numpy")
    x = np.arange(121.0).reshape(11, 11)
    assert (unigemm.matmul(x, x) == x @ x).all()
    monkeypatch.setenv("UNIGEMM_BACKEND", "cute_tcgen05")
    with pytest.raises(
        unigemm.UnsupportedProblem, match=r"UNIGEMM_BACKEND is cute_tcgen05: .*sm_90"
    ):
        unigemm.plan(*operands, target="sm_90a")
    with pytest.raises(unigemm.DeviceMismatch, match="UNIGEMM_BACKEND is cute_tcgen05: "):
        unigemm.matmul(np.eye(13), np.eye(13))
    monkeypatch.setenv("UNIGEMM_BACKEND", "cublas")
    with pytest.raises(BackendUnavailable, match=r"UNIGEMM_BACKEND: .*'cublas'.* numpy"):
        unigemm.plan(*operands, target="sm_90a")
    with pytest.raises(BackendUnavailable, match="UNIGEMM_BACKEND"):
        unigemm.matmul(np.eye(17), np.eye(17))


def test_a_plan_wins_over_the_named_backend(monkeypatch):
    plan = unigemm.plan(np.eye(19), np.eye(19))
    monkeypatch.setenv("UNIGEMM_BACKEND", "cute_simt")
    assert unigemm.matmul(np.eye(19), np.eye(19), plan=plan).sum() == 19


def test_plans_of_what_runs_are_written(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_DUMP", str(tmp_path / "a b" / "c"))
    unigemm.matmul(np.eye(23), np.eye(23))
    (folder,) = (tmp_path / "a b" / "c").iterdir()
    assert folder.name == "numpy-cpu"
    plan, text = sorted(folder.iterdir())
    assert unigemm.Plan.from_json(plan.read_text()).extents.m == 23
    assert "assumed" in text.read_text()


@pytest.mark.skipif(os.name != "posix", reason="links and FIFOs")
def test_what_cannot_be_dumped_is_a_warning_and_links_are_not_followed(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setenv("UNIGEMM_DUMP", str(file))
    with pytest.warns(SettingWarning, match="UNIGEMM_DUMP: .*cannot be written"):
        assert unigemm.matmul(np.eye(29), np.eye(29)).sum() == 29
    monkeypatch.setenv("UNIGEMM_DUMP", str(tmp_path / "d"))
    unigemm.matmul(np.eye(31), np.eye(31))
    for written in (tmp_path / "d" / "numpy-cpu").iterdir():
        written.unlink()
        written.symlink_to(file)
    unigemm.matmul(np.eye(31), np.asfortranarray(np.eye(31)))
    call_path.forget_calls()
    unigemm.matmul(np.eye(31), np.eye(31))
    assert file.read_text() == "mine"
    assert all(not written.is_symlink() for written in (tmp_path / "d" / "numpy-cpu").iterdir())


def test_code_of_what_runs_is_written(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIGEMM_DUMP", str(tmp_path / "dump"))
    plan = unigemm.plan(spec(64, 64), spec(64, 64), target="sm_90a", keep=0)
    files = {"kernel.ptx": b".version 8.6", "gemm.cubin": b"none", "kernel.o": b"object"}
    with pytest.warns(SettingWarning, match=r"UNIGEMM_DUMP: there is no SASS of gemm\.cubin"):
        dump(plan, "0123456789abcdef" * 4, files)
    monkeypatch.setattr(sass, "disassemble", lambda cubin: f"SASS of {cubin.decode()}")
    dump(plan, "0123456789abcdef" * 4, files)
    (folder,) = (tmp_path / "dump").iterdir()
    assert folder.name == f"{plan.backend}-sm_90a-0123456789abcdef"
    assert (folder / "kernel.ptx").read_text() == ".version 8.6"
    assert (folder / "gemm.sass").read_text() == "SASS of none"
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".ptx", ".sass", ".txt"]


def test_kernels_are_compiled_anew_and_published(monkeypatch, tmp_path):
    fill(tmp_path, "a")
    compiler = Compiler("a")
    monkeypatch.setenv("UNIGEMM_COMPILE", "always")
    cache = Cache(tmp_path, ())
    assert cache.get(fake_key("a")) is None
    entry = cache.get_or_compile(fake_key("a"), compiler)
    assert (entry.layer, entry.cached, compiler.calls) == ("cache", False, 1)
    cache.get_or_compile(fake_key("a"), compiler)
    assert compiler.calls == 1  # what this process has compiled it knows
    monkeypatch.setenv("UNIGEMM_COMPILE", "auto")
    assert Cache(tmp_path, ()).get_or_compile(fake_key("a"), never).files == entry.files
    assert Cache(tmp_path, ()).verify().damaged == ()


def test_the_version_is_that_of_the_metadata_or_older_than_any(monkeypatch):
    from importlib import metadata

    from unigemm.support import version

    assert unigemm.__version__ == metadata.version("unigemm")

    def none(name):
        raise metadata.PackageNotFoundError(name)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(metadata, "version", none)
            assert importlib.reload(version).__version__ == "0+unknown"
    finally:
        importlib.reload(version)


def cli(*args, **environment):
    arguments = json.dumps(["unigemm", *args])
    code = f"import sys; sys.argv = {arguments}; from unigemm.cli.main import main; main()"
    return run(code, NO_COLOR="1", **environment)


def test_the_command_tells_its_version():
    assert cli("--version").stdout == f"{unigemm.__version__}\n"


def test_info_tells_where_each_value_comes_from(tmp_path):
    given = {"UNIGEMM_CACHE_DIR": str(tmp_path), "UNIGEMM_CACHE_SIZE": "x", "UNIGEMM_LOGS": "info"}
    data = json.loads(cli("info", "--json", **given).stdout)
    found = {each["name"]: each for each in data["variables"]}
    assert list(found) == list(env.VARIABLES)
    sources = {name: each["source"] for name, each in found.items()}
    assert sources.pop("UNIGEMM_CACHE_DIR") == "environment"
    assert sources.pop("UNIGEMM_CACHE_SIZE") == "refused"
    assert set(sources.values()) == {"default"}
    assert found["UNIGEMM_CACHE_DIR"]["value"] == str(tmp_path)
    assert "no size" in found["UNIGEMM_CACHE_SIZE"]["problem"]
    assert data["unknown_variables"] == ["UNIGEMM_LOGS"]
    assert data["versions"]["unigemm"] == unigemm.__version__
    assert isinstance(data["missing"], list)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy the package as an installation has it: without links."""
    top = tmp_path_factory.mktemp("tree")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(unigemm.__file__).parent, top / "unigemm", ignore=skipped)
    return top


KEYS = (
    "import unigemm; s = unigemm.ArraySpec((64, 64), 'float16')\n"
    "for name, target in (('cute_wgmma', 'sm_90a'), ('cutile', 'sm_80')):\n"
    "    plan = unigemm.plan(s, s, target=target, backend=name, keep=0)\n"
    "    print(unigemm.planning.registry.backend_named(name).key(plan).source)"
)


def test_an_archive_names_kernels_as_the_tree_does(tree):
    archive = shutil.make_archive(str(tree / "package"), "zip", tree, "unigemm")
    packed = run(f"{PRODUCT}; print(unigemm.__file__)", PYTHONPATH=archive)
    assert packed.stdout.split() == ["6.0", str(Path(archive, "unigemm", "__init__.py"))]
    assert run(KEYS, PYTHONPATH=archive).stdout == run(KEYS).stdout != ""


def test_without_sources_products_run_on_the_host_and_kernels_are_refused_in_words(tree, tmp_path):
    shutil.copytree(tree, tmp_path / "compiled")
    assert compileall.compile_dir(tmp_path / "compiled", quiet=1, legacy=True)
    for source in (tmp_path / "compiled").rglob("*.py"):
        source.unlink()
    code = (
        f"{PRODUCT}\n"
        "for each in unigemm.backend_info(): print(each.name, each.missing)\n"
        "s = unigemm.ArraySpec((64, 64), 'float16')\n"
        "plan = unigemm.plan(s, s, target='sm_90a')\n"
        "try: unigemm.compile(plan)\n"
        "except unigemm.BackendUnavailable as error: print('refused:', error)"
    )
    done = run(code, PYTHONPATH=str(tmp_path / "compiled"))
    assert done.stdout.startswith("6.0\nnumpy None\n"), done.stderr
    assert done.stdout.count("install unigemm with its .py files") == 5  # with the refusal


@pytest.mark.compile
def test_a_kernel_compiles_where_the_folder_for_temporary_files_has_a_space(monkeypatch, tmp_path):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    plan = unigemm.plan(spec(16, 16), spec(16, 16), target="sm_80", backend="cute_simt", keep=0)
    cache = Cache(tmp_path / "cache", ())
    for name in ("it's", "b\nc", 'd"'):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        with pytest.raises(CompilationError, match="set TMPDIR to a folder without"):
            unigemm.compile(plan, cache)
    (tmp_path / "a b, (c)").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b, (c)"))
    entry = unigemm.compile(plan, cache).entry
    assert {"kernel.so", "kernel.cubin", "kernel.ptx"} <= set(entry.files)


def test_no_folder_for_temporary_files_is_a_sentence(monkeypatch, tmp_path):
    from unigemm.cache.sass import work_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CompilationError, match="set TMPDIR"), work_folder():
        pass


@pytest.mark.parametrize(
    "flags",
    [("-OO",), ("-I",), ("-S",), ("-B", "-W", "error")],
    ids=" ".join,
)
def test_products_do_not_depend_on_pythons_flags(flags):
    paths = [str(Path(unigemm.__file__).parents[1]), *filter(os.path.isdir, sys.path)]
    done = run(f"import sys; sys.path[:0] = {paths}; {PRODUCT}", *flags)
    assert (done.stdout, done.stderr) == ("6.0\n", "")


def test_cutile_says_that_it_compiles_nothing_without_docstrings():
    code = "import unigemm; print([x.compiler_missing for x in unigemm.backend_info()])"
    assert "run Python without -OO" in run(code, "-OO").stdout


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the files")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_products_need_no_open_standard_files(closed, tmp_path):
    code = (
        "import sys, numpy, unigemm; r = unigemm.matmul(numpy.eye(3), numpy.eye(3))\n"
        f"open({str(tmp_path / 'out')!r}, 'w').write(str(r.sum()))"
    )
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    environment = {**os.environ, "UNIGEMM_LOG": "debug", "UNIGEMM_CACHE_SIZE": "x"}
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert (tmp_path / "out").read_text() == "3.0"
