"""What the command line prints reads well at any width, and a lost stdout is no traceback."""

from __future__ import annotations

import errno
import fcntl
import importlib
import io
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import termios
from functools import partial
from types import SimpleNamespace

import pytest
from cache_fakes import fill
from processes import python
from rich.console import Console

from unigemm import ArraySpec, api, cache, plan
from unigemm.cache import Cache
from unigemm.cache.artifact import KernelInfo
from unigemm.cli import cache as cli_cache
from unigemm.cli import demo
from unigemm.cli import main as cli
from unigemm.cli import render as show
from unigemm.planning.config import Config

MAIN = "from unigemm.cli.main import main; main()"
PYTHON = shlex.quote(sys.executable)  # as a word of a shell
SCHEDULES = ("cute_simt.schedules", "cute_wgmma.cost", "cute_tcgen05.geometry", "cutile.tiles")
WIDTHS = (80, 100, 120)
COMMANDS = {
    "the pick and what lost to it": ("plan", 4096, 4096, 4096, "--dtype", "bf16"),
    "one row, and much that cannot run": ("plan", 1, 4096, 4096, "--layout", "nt"),
    "odd extents": ("plan", 4095, 4097, 511, "--batch", 3, "--layout", "tn"),
    "scales of blocks": ("plan", 300, 700, 512, "--dtype", "nvfp4", "--layout", "nt"),
    "the ranking": ("plan", 257, 4096, 4096, "--top", 30),
}


def reads_well(text, columns):
    """Whether no line is wider than the terminal, but for a single word that is longer."""
    return all(len(line) <= columns or len(line.split()) == 1 for line in text.splitlines())


@pytest.fixture
def shown(monkeypatch, capsys, tmp_path):
    """Return what a command prints at a width; it must succeed."""
    for module in (cli_cache, cache):  # that of the run grows while others compile
        monkeypatch.setattr(module, "default_cache", lambda: Cache(tmp_path))
    monkeypatch.delenv("LINES", raising=False)

    def run(columns, *command):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.argv", ["unigemm", *map(str, command)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_plan_fits_the_width_and_breaks_no_word(name, columns, shown):
    target = ("--target", "sm_100a" if "nvfp4" in COMMANDS[name] else "sm_90a")
    command = (*COMMANDS[name], *target)
    text = shown(columns, *command)
    assert reads_well(text, columns)
    whole = shown(10_000, *command)
    if "--top" in command:
        assert sorted(text.split()) == sorted(whole.split())
    else:
        assert len(text.splitlines()) < 24  # and a prompt
        # What stands in the wide one is all there is, but for the line that counts what is not.
        words = {*whole.split()} | {"and", "slower:", "slower,", "refused:", "shows", "all"}
        assert {word for word in text.split() if not word.strip("-").isdecimal()} - {
            "--top"
        } <= words


def test_a_plan_shows_the_pick_its_limiter_and_what_lost_in_one_screen():
    a = ArraySpec((1, 4096), "float32")
    found = plan(a, ArraySpec((4096, 4096), "float32", "F"), target="sm_90a", keep=200)
    lines = str(found).splitlines()
    assert len(lines) == 23
    text = " ".join(str(found).split())
    assert f"-> {found.backend} {found.config}:" in text
    assert f"limited by {found.limiter}" in text
    lost = [f"{x.predicted_us:.1f} {x.limiter} {x.backend} {x.config}" for x in found.alternatives]
    count = sum(each in text for each in lost)
    assert 3 <= count < len(lost)
    assert lines[-1].startswith(f"  and {len(lost) - count} slower")
    assert all(f"not {each.backend}" in text for each in found.rejected if each.config is None)


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (1, 4096, 4096), (4095, 4099, 1000)])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_plan_names_each_of_its_codes(sizes, target, dtype):
    m, n, k = sizes
    found = plan(ArraySpec((m, k), dtype), ArraySpec((k, n), dtype), target=target)
    text = " ".join(str(found).split())
    for each in (found.config, *found.config.remainder):
        assert " ".join(code for code, _ in each.codes) in str(found.config)
        assert all(f" = {words}" in text for _, words in each.codes)
        assert {words for _, words in each.codes}.isdisjoint({"its schedule"})


@pytest.mark.parametrize("module", SCHEDULES)
def test_every_schedule_is_named_in_words(module):
    for name in filter(None, importlib.import_module(f"unigemm.backends.{module}").SCHEDULES):
        assert "its schedule" not in dict(Config((8, 8, 8), schedule=name).codes).values()


def test_bars_are_for_terminals_alone(capsys):
    with show.progress(False) as bar, show.waiting("waiting", False):
        bar.update(bar.add_task("compiling"), total=2, completed=1)
    assert capsys.readouterr() == ("", "")


def test_no_bar_is_left_where_there_is_nothing_to_compile(monkeypatch):
    shown = io.StringIO()
    terminal = partial(Console, file=shown, force_terminal=True, width=80)
    monkeypatch.setattr(show, "Console", lambda **_: terminal())
    on_the_host = plan(*[ArraySpec((64, 64), "float32")] * 2, target="cpu")
    for plans in ([], [on_the_host], [on_the_host] * 3):
        show.compile_all(plans, quiet=False)
    assert "/" not in shown.getvalue()
    with show.progress(False) as bar:
        bar.add_task("compiling", total=3)
    assert "0/3" in shown.getvalue()


def test_on_the_host_nothing_of_a_launch_is_shown():
    text = str(plan(*[ArraySpec((64, 64), "float32")] * 2, target="cpu"))
    assert "numpy 64x64x64:" in text
    assert "raster" not in text
    assert " s1" not in text
    assert str(Config((64, 64, 8), stages=2)) == "64x64x8 s2 w1x1 raster m1"


def compiled(target):
    info = KernelInfo(232, 232_800, 0, 12.25)
    made = plan(*[ArraySpec((4095, 4095), "float16")] * 2, target=target)
    entry = SimpleNamespace(info=info, cached=target == "sm_80", files={})
    return api.CompiledKernel(made, entry)


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_kernels_fold_by_columns(columns, shown, monkeypatch, capsys, tmp_path):
    fill(tmp_path, "a", "b")
    assert reads_well(shown(columns, "cache", "ls"), columns)
    made = [compiled(target) for target in ("sm_80", "sm_90a", "sm_100a", "cpu")]
    mix = dict.fromkeys(("HGMMA", "FFMA", "LDS", "LDSM", "LDG", "UTMALDG", "STS"), 1024)
    monkeypatch.setattr(show, "_mix", lambda entry: mix)
    texts = []
    for width in (columns, 10_000):
        monkeypatch.setenv("COLUMNS", str(width))
        show.print_table(show.kernel_table(made))
        texts.append(capsys.readouterr().out)
    assert reads_well(texts[0], columns)
    assert sorted(texts[0].split()) == sorted(texts[1].split())
    assert len(texts[1].splitlines()) == 1 + len(made)


@pytest.mark.parametrize("columns", WIDTHS)
def test_what_is_here_fits(columns, shown):
    text = shown(columns, "info")
    assert reads_well(text, columns)
    assert {*text.split()} == {*shown(10_000, "info").split()}


def test_the_help_of_every_command_fits(shown):
    for command in ("plan", "compile", "tune", "sweep", "info", "demo", "cache"):
        assert reads_well(shown(80, command, "--help"), 80)


def test_an_empty_cache_is_a_sentence(shown):
    assert shown(80, "cache", "ls") == "no kernels in the cache\n"
    assert json.loads(shown(80, "cache", "ls", "--json")) == []


@pytest.mark.parametrize("columns", [80])
def test_at_a_terminal_errors_break_between_words(columns, tmp_path):
    """In a real process at a real terminal, which alone tells the width."""
    main, ours = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", "unigemm", "plan", "4", "4", "4", "--dtype", "float6"],
        stdin=ours, stdout=ours, stderr=ours,
        env={**environment, "UNIGEMM_CACHE_DIR": str(tmp_path), "TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(ours)
        found = b""
        while True:
            try:
                found += os.read(main, 4096)
            except OSError:  # the terminal's other end is closed
                break
    os.close(main)
    assert process.returncode == 2
    shown = found.decode().rpartition("\x1b[2K")[2]  # behind the bar, which is erased
    text = re.sub(r"\x1b\[[\d;]*m", "", shown).replace("\r", "")
    assert text.startswith("unigemm: dtype 'float6' is not supported")
    assert reads_well(text, columns)
    assert text.count("\n") > 1
    assert "int8" in text.split()


LOST = {
    "full": ("exec {} --version >/dev/full", 2, "unigemm: standard output cannot be written to: "),
    "closed": ("exec {} --version >&-", 2, "unigemm: standard output cannot be written to: "),
    "all full": ("exec {} plan 4 4 4 --target sm_80 --json >/dev/full 2>/dev/full", 2, ""),
    "no reader": ("{} plan 4 4 4 --target sm_80 --top 500; echo $? >&2", 0, "141\n"),
    "no reader of help": ("{} --help; echo $? >&2", 0, "141\n"),
    "errors closed": ("exec {} plan 4 4 4 --dtype float6 2>&-", 2, ""),
}


@pytest.mark.parametrize("kind", LOST)
def test_an_output_that_is_lost_is_no_traceback(kind, tmp_path):
    line, code, says = LOST[kind]
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does, but at once
    done = subprocess.run(
        ["sh", "-c", line.format(f"{PYTHON} -m unigemm")],
        env={**os.environ, "UNIGEMM_CACHE_DIR": str(tmp_path)},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == code
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == bool(says)


def test_a_closed_descriptor_is_no_file_of_the_cache(tmp_path):
    """The next file that a process opens gets a closed stream's number."""
    code = (
        "import os; from unigemm.cli import render as show\n"
        "with show.guarded_streams(): print(os.open('.', os.O_RDONLY) > 2)"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec {PYTHON} -c "{code}" <&- 2>&-'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [("unigemm plan 4 4 4 --target sm_10", {"sm_100a", "sm_103a", "sm_107a"})],
)
def test_a_shell_completes_commands_and_values(words, expected):
    complete = {
        "_UNIGEMM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = python("-c", f"import sys; sys.argv[0] = 'unigemm'; {MAIN}", **complete)
    assert {*done.stdout.split()} == expected


def test_a_file_that_cannot_be_written_is_one_sentence(monkeypatch, capsys, tmp_path):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied", "/nowhere")

    monkeypatch.setattr(demo, "run_demo", refuse)
    for option in ((), ("--json",)):
        monkeypatch.setattr("sys.argv", ["unigemm", "demo", *option])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.err == "unigemm: Permission denied (/nowhere)\n"
    assert json.loads(printed.out)["error"]["type"] == "PermissionError"


@pytest.mark.parametrize("setting", ["COLUMNS=0", "COLUMNS=1", "LINES=0", "COLUMNS=0 LINES=0"])
@pytest.mark.parametrize(
    "command",
    [
        ("info", "--json"),
        ("info",),
        ("plan", 64, 64, 64, "--target", "h100"),
        ("plan", 64, 64, 64, "--target", "h100", "--json"),
        ("cache", "ls", "--json"),
        ("--version",),
        ("--help",),
        ("plan", "--help"),
    ],
)
def test_a_size_at_which_nothing_can_be_read_is_taken_for_none(
    setting, command, shown, monkeypatch
):
    expected = shown(80, *command).split()
    sizes = dict(each.split("=") for each in setting.split())
    if "LINES" in sizes:
        monkeypatch.setenv("LINES", sizes["LINES"])
    assert {*shown(sizes.get("COLUMNS", 80), *command).split()} == {*expected}
