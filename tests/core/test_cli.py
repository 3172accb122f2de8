"""The command line, run as a user runs it: in a process of its own."""

from __future__ import annotations

import inspect
import json
import os
import random
from pathlib import Path

import pytest
import typer
from cache_fakes import fill
from commands import forked
from processes import output_of

import unigemm
from unigemm.cache.sass import inspect_cubin, instruction_mix
from unigemm.cli import render as show
from unigemm.cli.main import app
from unigemm.errors import UnsupportedProblem
from unigemm.planning.plan import Plan
from unigemm.planning.target import ARCHITECTURES, DEVICES, SHORT_NAMES, device_count
from unigemm.problem.dtypes import INPUTS
from unigemm.problem.problem import PRECISIONS

PROMISED = {
    *("backend", "target", "tile", "cluster", "stages", "split_k", "raster"),
    *("predicted_us", "alternatives", "rejected"),
}


def run(*args, cache, code=0, **environment):
    own = {**os.environ, "UNIGEMM_CACHE_DIR": str(cache), "NO_COLOR": "1", **environment}
    done = forked([*map(str, args)], own)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def commands(group=None, before=()):
    """Return the words of every command."""
    group = group or typer.main.get_command(app)
    for name, each in group.commands.items():
        words = (*before, name)
        yield from commands(each, words) if hasattr(each, "commands") else (words,)


def command_of(words):
    found = typer.main.get_command(app)
    for word in words:
        found = found.commands[word]
    return found


def run_json(*args, cache, code=0, **environment):
    done = run(*args, "--json", cache=cache, code=code, **environment)
    return json.loads(done.stdout)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_a_plan_has_the_promised_keys_and_is_a_plan_again(target, tmp_path):
    data = run_json("plan", 4096, 4000, 512, "--target", target, cache=tmp_path)
    assert set(data) >= PROMISED
    assert data["target"] == target
    assert len(data["tile"]) == 3
    assert set(data["raster"]) == {"order", "group"}
    assert {"backend", "reason"} <= set(data["rejected"][0])
    assert (data["extents"]["m"], data["extents"]["n"], data["extents"]["k"]) == (4096, 4000, 512)
    a, b = unigemm.ArraySpec((4096, 512), "float32"), unigemm.ArraySpec((512, 4000), "float32")
    assert Plan.from_dict(data) == unigemm.plan(a, b, target=target)


@pytest.mark.parametrize("along", ["m", "n", "k", "rows"])
def test_groups_are_planned_as_grouped_matmul_has_them(along, tmp_path):
    words = ("--groups", 4, "--along", along, "--dtype", "bfloat16", "--layout", "nt")
    data = run_json("plan", 96, 64, 32, *words, "--epilogue", "c,relu", "--target", "sm_90a",
                    cache=tmp_path)  # fmt: skip
    spec, stack = unigemm.ArraySpec, (4,)
    lead_a = stack if along in ("n", "rows") else ()
    lead_b = stack if along in ("m", "rows") else ()
    c = spec((*(() if along in "mn" else stack), 96, 64), "bfloat16")
    ends = {"rows" if along == "rows" else "offsets": spec((4,), "int32")}
    a, b = spec((*lead_a, 96, 32), "bfloat16"), spec((*lead_b, 32, 64), "bfloat16", "F")
    plan = unigemm.plan(a, b, target="sm_90a", c=c, activation="relu", **ends)
    assert Plan.from_dict(data) == plan
    taken = {"rows": "all rows to be valid", "k": "groups of equal K"}.get(
        along, "groups as uneven as experts get rows"
    )
    assert f"estimates take {taken}" in str(plan)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--along", "q"), "along 'q' is not known"),
        (("--batch", 3), "batch is not for groups"),
        (("--plot", "plan.svg"), "the tiles of one product"),
    ],
)
def test_groups_that_are_none_end_in_a_sentence(words, said, tmp_path):
    requested = ("plan", 96, 64, 32, "--groups", 4, "--target", "sm_90a", *words)
    assert said in run(*requested, cache=tmp_path, code=2).stderr
    assert said in run_json(*requested, cache=tmp_path, code=2)["error"]["message"]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_options_describe_the_problem_that_is_planned(layout, tmp_path):
    data = run_json(
        *("plan", 64, 32, 16, "--layout", layout, "--dtype", "bf16", "--out-dtype", "float32"),
        *("--batch", 3, "--target", "sm_80", "--backend", "cute_simt", "--precision", "ieee"),
        cache=tmp_path,
    )
    problem = data["problem"]
    assert data["backend"] == "cute_simt"
    assert problem["a"] == {"dtype": "bfloat16", "major": "km"[layout[0] == "t"], "alignment": 16}
    assert problem["b"] == {"dtype": "bfloat16", "major": "nk"[layout[1] == "t"], "alignment": 16}
    assert problem["d"]["dtype"] == "float32"
    assert problem["precision"] == "ieee"
    assert data["extents"] == {"m": 64, "n": 32, "k": 16, "batch": 3, "groups": 1}


@pytest.mark.parametrize(
    ("options", "a", "d", "precision"),
    [
        (("--dtype", "fp8_e4m3"), "float8_e4m3fn", "float32", "ieee"),
        (("--dtype", "e5m2", "--out-dtype", "bf16"), "float8_e5m2", "bfloat16", "ieee"),
        (("--dtype", "int8"), "int8", "int32", "ieee"),
        (("--precision", "tf32"), "float32", "float32", "tf32"),
        (("--precision", "3xtf32"), "float32", "float32", "3xtf32"),
    ],
)
def test_every_dtype_and_precision_has_a_name(options, a, d, precision, tmp_path):
    data = run_json("plan", 64, 32, 16, *options, "--target", "sm_90a", cache=tmp_path)
    problem = data["problem"]
    assert (problem["a"]["dtype"], problem["d"]["dtype"]) == (a, d)
    assert problem["precision"] == precision


@pytest.mark.parametrize(("dtype", "k"), [("mxfp8", 512), ("nvfp4", 256)])
def test_formats_with_scales_of_blocks_have_names(dtype, k, tmp_path):
    options = ("--layout", "nt", "--target", "sm_100a", "--batch", 3)
    data = run_json("plan", 300, 700, 512, "--dtype", dtype, *options, cache=tmp_path)
    assert data["backend"] == "cute_tcgen05"
    assert data["problem"]["blocks"]["a"] == "blocked"
    assert data["extents"] == {"m": 300, "n": 700, "k": k, "batch": 3, "groups": 1}
    odd = run_json("plan", 64, 64, 63, "--dtype", "nvfp4", cache=tmp_path, code=2)
    assert "even" in odd["error"]["message"]


def test_the_help_names_every_dtype_and_precision(tmp_path):
    text = run("plan", "--help", cache=tmp_path, COLUMNS="200").stdout
    assert all(str(dtype) in text for dtype in INPUTS)
    assert all(precision in text for precision in PRECISIONS)


def test_several_targets_give_a_list_of_plans(tmp_path):
    data = run_json("plan", 64, 64, 64, "--target", "sm_80", "--target", "sm_90", cache=tmp_path)
    assert [plan["target"] for plan in data] == ["sm_80", "sm_90a"]


def test_a_plan_in_words_names_the_kernel_and_the_rejected(tmp_path):
    text = run("plan", 512, 512, 512, "--target", "sm_90a", cache=tmp_path).stdout
    assert "512x512x512 on sm_90a" in text
    assert "-> cute_simt" in text
    assert "not numpy" in text


def test_a_named_backend_says_why_its_rivals_were_left_out(tmp_path):
    command = ("plan", 512, 512, 512, "--dtype", "bf16", "--target", "h100")
    plan = run_json(*command, "--backend", "cutile", cache=tmp_path)
    whole = {x["backend"]: x["reason"] for x in plan["rejected"] if x["config"] is None}
    rivals = {each.name for each in unigemm.backend_info()} - {"cutile"}
    assert whole == dict.fromkeys(rivals, "only cutile was requested")


def test_h_is_help_of_every_command(tmp_path):
    assert len([*commands()]) >= 15
    for words in ((), ("cache",), *commands()):
        assert "Usage" in run(*words, "-h", cache=tmp_path).stdout


def test_every_argument_and_option_has_help():
    lacking = [
        (words, each.name)
        for words in commands()
        for each in command_of(words).params
        if not getattr(each, "help", None)
    ]
    assert lacking == []


def test_targets_dtypes_and_backends_complete_in_every_command():
    lacking = [
        (words, each.name)
        for words in commands()
        for each in command_of(words).params
        if each.name in ("target", "backend", "dtype", "out_dtype", "layout", "precision")
        if not each.shell_complete(typer.Context(command_of(words)), "")
    ]
    assert lacking == []


def test_every_command_that_may_take_a_while_shows_what_goes_on():
    silent = [
        words
        for words in commands()
        if not {"progress", "waiting", "compile_all", "run_demo"}
        & {*inspect.unwrap(command_of(words).callback).__code__.co_names}
    ]
    assert silent == [("targets",)]  # which reads a table


def test_as_many_configurations_are_ranked_as_asked_for(tmp_path):
    command = ("plan", 512, 512, 512, "--target", "sm_90a")
    assert len(run_json(*command, "--top", 3, cache=tmp_path)["alternatives"]) == 2
    everything = run_json(*command, "--top", 100000, cache=tmp_path)["alternatives"]
    assert len(everything) > 20
    assert {"launch", "mainloop", "waves"} <= {*everything[0]["parts"]}
    text = run(*command, "--top", 3, cache=tmp_path).stdout
    assert sum(" | " in line for line in text.splitlines()) == 4


@pytest.mark.skipif(device_count() > 0, reason="there is a device to measure on")
def test_tuning_needs_a_device(tmp_path):
    for command in ("tune", "sweep"):
        assert "needs a CUDA device" in run(command, 64, 64, 64, cache=tmp_path, code=2).stderr


USER_ERRORS = {
    "dtype": (("plan", 4, 4, 4, "--dtype", "float6"), "UnsupportedDtype"),
    "target": (("plan", 4, 4, 4, "--target", "sm_42"), "UnsupportedProblem"),
    "layout": (("plan", 4, 4, 4, "--layout", "xy"), "UnsupportedProblem"),
    "precision": (("plan", 4, 4, 4, "--precision", "int4"), "UnsupportedProblem"),
    "precision of bf16": (
        ("plan", 4, 4, 4, "--dtype", "bf16", "--precision", "tf32"),
        "UnsupportedProblem",
    ),
    "integers of tensor cores": (
        ("plan", 4, 4, 4, "--dtype", "int32", "--backend", "cute_wgmma", "--target", "sm_90a"),
        "UnsupportedProblem",
    ),
    "target of the cache": (("cache", "ls", "--target", "bogus"), "UnsupportedProblem"),
    "backend of the cache": (("cache", "clear", "--backend", "bogus"), "BackendUnavailable"),
    "backend": (("compile", 4, 4, 4, "--backend", "cublas"), "BackendUnavailable"),
    "bundle": (("cache", "import", "/nowhere/at/all.tar.gz"), "CacheError"),
    "nothing to export": (("cache", "export", "/nowhere/at/all.zip"), "CacheError"),
    "size": (("cache", "prune", "--limit", "big"), "CacheError"),
}


@pytest.mark.parametrize("kind", USER_ERRORS)
def test_a_users_error_is_one_sentence_and_exit_code_2(kind, tmp_path):
    command, error = USER_ERRORS[kind]
    done = run(*command, cache=tmp_path, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("unigemm: ")
    assert done.stderr.count("\n") == 1
    as_json = run(*command, "--json", cache=tmp_path, code=2)
    assert as_json.stderr == ""
    assert json.loads(as_json.stdout) == {
        "error": {"type": error, "message": done.stderr.removeprefix("unigemm: ").rstrip("\n")}
    }
    assert issubclass(getattr(unigemm, error), unigemm.UnigemmError)


@pytest.mark.parametrize(
    "command", [("plan", 4, 4), ("plan", 4, 0, 4), ("plan", 4, 4, "k"), ("bogus",)], ids=str
)
def test_a_wrong_usage_is_exit_code_2_and_json_where_json_was_asked_for(command, tmp_path):
    assert "Usage:" in run(*command, cache=tmp_path, code=2).stderr
    assert run_json(*command, cache=tmp_path, code=2)["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    "command", [("plan", 4, 4, 4), ("compile", 4, 4, 4), ("cache", "ls"), ("cache", "clear"),
                ("cache", "export", "x.zip")], ids=str,
)  # fmt: skip
def test_targets_have_one_grammar_in_all_commands(command, tmp_path):
    said = run(*command, "--target", "bogus", cache=tmp_path, code=2, COLUMNS="9999").stderr
    assert "'bogus' is not known; name one that `unigemm targets` lists" in said
    assert "none is older than sm_80" in said


def test_a_target_of_another_name_is_told_the_nearest():
    for asked, nearest in (("h1000", "h100"), ("RTX 4099", "rtx4090"), ("sm_91", "sm_90a")):
        with pytest.raises(UnsupportedProblem, match=f"not known, the nearest are .*{nearest}"):
            unigemm.named_target(asked)
    for old in ("sm_75", "75", "sm_52"):
        with pytest.raises(UnsupportedProblem, match=rf"{old}' is too old: .* older than sm_80"):
            unigemm.named_target(old)


@pytest.mark.parametrize("seed", range(3))
def test_a_name_with_one_wrong_letter_is_told_the_right_one(seed):
    draw = random.Random(seed)
    for _ in range(40):
        name = draw.choice([x for x in SHORT_NAMES if len(x) > 3])
        at = draw.randrange(len(name))
        wrong = name[:at] + draw.choice("qwz") + name[at + 1 :]
        with pytest.raises(UnsupportedProblem) as error:
            unigemm.named_target(wrong)
        said = str(error.value)
        assert len(said) < 220
        told = said.partition("nearest are ")[2].partition(";")[0].split(", ")
        alike = all(sum(map(str.__ne__, each, wrong)) == 1 for each in told)
        assert name in told or alike, said


def test_every_device_has_a_short_name_of_its_own(tmp_path):
    for name, device in zip(SHORT_NAMES, DEVICES, strict=True):
        assert unigemm.named_target(name).name == device
    assert {"h20", "gh200", "gb200", "gb300", "h100", "b200"} <= set(SHORT_NAMES)
    listed = run_json("targets", cache=tmp_path)
    assert [*dict.fromkeys(each["arch"] for each in listed)] == [*ARCHITECTURES]
    assert {each["name"]: each["device"] for each in listed} == dict(
        zip(SHORT_NAMES, DEVICES, strict=True)
    )
    rows = run("targets", cache=tmp_path, COLUMNS="200").stdout.splitlines()
    assert [row.split()[-1] for row in rows if row.startswith(("h100 ", "b200 "))] == [
        "predicted",
        "assumed",
    ]


def test_times_of_devices_that_were_not_measured_are_called_assumed(tmp_path):
    for target, worth in (("h100", "predicted"), ("h200", "predicted"), ("b200", "assumed"),
                          ("h20", "assumed"), ("cpu", "assumed")):  # fmt: skip
        command = ("plan", 512, 512, 512, "--target", target)
        data = run_json(*command, cache=tmp_path)
        assert data["assumed"] is (worth == "assumed")
        for more in ((), ("--top", 3)):
            text = run(*command, *more, cache=tmp_path, COLUMNS="200").stdout
            assert f"us {worth}, limited by" in text
            assert ("the cost model was fitted to other devices" in text) is data["assumed"]
    spec = unigemm.ArraySpec((64, 64), "bfloat16")
    plan = unigemm.plan(spec, spec, target="b200")
    assert plan.assumed
    assert "us assumed" in plan.explain()
    assert Plan.from_json(plan.to_json()) == plan


def test_sentences_are_printed_as_they_are(capsys):
    sentence = 'pip install "nvidia-cutlass-dsl[cu13]" [red]' + " and more" * 30
    show.say(sentence)
    show.say(sentence, error=True)
    shown = capsys.readouterr()
    assert shown.out == shown.err == sentence + "\n"


def test_info_tells_versions_devices_backends_and_cache(tmp_path):
    data = run_json("info", cache=tmp_path)
    named = [backend.name for backend in unigemm.backend_info()]
    assert [backend["name"] for backend in data["backends"]] == named
    assert len(data["devices"]) == device_count()
    assert data["versions"]["python"].startswith("3.")
    assert data["cache"]["layers"][-1]["path"] == str(tmp_path)
    text = run("info", cache=tmp_path).stdout
    assert all(name in text for name in named)
    assert str(tmp_path) in text


@pytest.mark.compile
def test_compiling_fills_the_cache_once(tmp_path):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    command = ("compile", 64, 64, 64, "--target", "sm_80", "--target", "sm_90a")
    first = run_json(*command, cache=tmp_path)
    assert (first["compiled"], first["cached"]) == (2, 0)
    assert [kernel["target"] for kernel in first["kernels"]] == ["sm_80", "sm_90a"]
    for kernel in first["kernels"]:
        cubin = (Path(kernel["path"]) / "kernel.cubin").read_bytes()
        report = inspect_cubin(cubin)
        assert kernel["registers"] == report.registers
        assert kernel["smem_bytes"] > report.smem_bytes
        assert kernel["spill_bytes"] == report.local_bytes == 0
        assert kernel["instructions"] == instruction_mix({"kernel.cubin": cubin})
        assert kernel["seconds"] > 0
    second = run_json(*command, cache=tmp_path)
    assert (second["compiled"], second["cached"]) == (0, 2)
    assert [k["key"] for k in second["kernels"]] == [k["key"] for k in first["kernels"]]
    listed = run_json("cache", "ls", cache=tmp_path)
    assert {entry["digest"] for entry in listed} == {k["key"] for k in first["kernels"]}
    done = run(*command, cache=tmp_path)
    assert "nothing was compiled" in done.stdout
    assert "FFMA:" in done.stdout
    assert done.stderr == ""  # bars are for terminals


def test_the_host_backend_compiles_nothing(tmp_path):
    data = run_json("compile", 8, 8, 8, "--target", "cpu", cache=tmp_path)
    assert data == {"compiled": 0, "cached": 0, "kernels": []}
    assert "needs no kernels" in run("compile", 8, 8, 8, "--target", "cpu", cache=tmp_path).stdout


def test_the_cache_is_listed_and_counted(tmp_path):
    fill(tmp_path, "a", "b")
    fill(tmp_path, "c", arch="sm_80")
    assert len(run_json("cache", "ls", cache=tmp_path)) == 3
    (only,) = run_json("cache", "ls", "--target", "sm_80", cache=tmp_path)
    assert only["arch"] == "sm_80"
    assert run_json("cache", "ls", "--target", "A100 PCIe", cache=tmp_path) == [only]
    assert len(run_json("cache", "ls", "--target", "h100", cache=tmp_path)) == 2
    assert run_json("cache", "ls", "--backend", "numpy", cache=tmp_path) == []
    assert run_json("cache", "ls", "--target", "b200", cache=tmp_path) == []
    text = run("cache", "ls", cache=tmp_path).stdout
    assert only["digest"][:12] in text
    assert "64x64x8" in text
    assert run_json("cache", "stats", cache=tmp_path)["layers"][-1]["entries"] == 3
    assert "fake sm_90a: 2 kernels" in run("cache", "stats", cache=tmp_path).stdout


def test_a_damaged_kernel_is_exit_code_1_until_it_is_repaired(tmp_path):
    (entry,) = fill(tmp_path, "a")
    fill(tmp_path, "b")
    assert run_json("cache", "verify", cache=tmp_path) == {
        "sound": 2,
        "damaged": [],
        "other_versions": 0,
    }
    file = Path(entry.files["kernel.o"])
    file.write_bytes(file.read_bytes()[:-1])
    found = run_json("cache", "verify", cache=tmp_path, code=1)
    assert found["sound"] == 1
    assert [damage["set_aside"] for damage in found["damaged"]] == [False]
    assert entry.digest in run("cache", "verify", cache=tmp_path, code=1).stdout
    run("cache", "verify", "--repair", cache=tmp_path, code=1)
    assert run_json("cache", "verify", cache=tmp_path) == {
        "sound": 1,
        "damaged": [],
        "other_versions": 0,
    }


def test_a_bundle_carries_kernels_to_another_cache(tmp_path):
    here, there, folder = tmp_path / "here", tmp_path / "there", tmp_path / "bundle"
    entries = fill(here, "a", "b")
    archive = tmp_path / "kernels.tar.gz"
    assert run_json("cache", "export", archive, cache=here)["entries"] == 2
    key = entries[0].digest[:16]
    assert run_json("cache", "export", folder, "--key", key, cache=here)["entries"] == 1
    taken = run_json("cache", "import", archive, cache=there)
    assert (taken["imported"], taken["present"], taken["refused"]) == (2, 0, [])
    assert "2 were here" in run("cache", "import", archive, cache=there).stdout
    empty = tmp_path / "empty"
    layers = run_json("cache", "stats", cache=empty, UNIGEMM_CACHE_BUNDLES=str(folder))["layers"]
    assert [(layer["layer"], layer["entries"]) for layer in layers] == [("bundle", 1), ("cache", 0)]


def test_kernels_that_are_damaged_do_not_travel(tmp_path):
    (entry,) = fill(tmp_path / "here", "a")
    fill(tmp_path / "here", "b")
    Path(entry.files["kernel.o"]).write_bytes(b"changed")
    bundle = tmp_path / "bundle"
    done = run("cache", "export", bundle, cache=tmp_path / "here", code=1)
    assert f"left out: {entry.path}" in done.stdout
    assert run_json("cache", "import", bundle, cache=tmp_path / "there")["imported"] == 1


def test_kernels_are_removed_when_asked(tmp_path):
    fill(tmp_path, "a", "b")
    fill(tmp_path, "c", arch="sm_80")
    assert run_json("cache", "clear", "--target", "a100", cache=tmp_path)["entries"] == 1
    assert "0 kernels removed" in run("cache", "prune", cache=tmp_path).stdout
    assert run_json("cache", "prune", "--limit", "0", cache=tmp_path)["left"] == 0
    fill(tmp_path, "d")
    assert "1 kernels removed" in run("cache", "clear", cache=tmp_path).stdout


def test_a_warning_is_a_sentence_too(tmp_path):
    fill(tmp_path, "a")
    tmp_path.chmod(0o777)
    done = run("cache", "ls", cache=tmp_path)
    assert done.stderr.startswith("unigemm: ")
    assert "chmod 700" in done.stderr
    assert ".py:" not in done.stderr


def test_the_package_runs_as_a_module():
    command = ("-m", "unigemm", "plan", 64, 64, 64, "--target", "sm_90a")
    assert "cute_simt" in output_of(*command)


def test_what_fails_leaves_no_progress_bar_behind(monkeypatch, capsys, tmp_path):
    from unigemm import UnsupportedProblem
    from unigemm.cli import main as cli

    def refuse(*_, **__):
        raise UnsupportedProblem("this cannot be done; do something else")

    monkeypatch.setattr("unigemm.cli.render.compile_needed", refuse)
    monkeypatch.setattr("unigemm.tuning.autotune.autotune", refuse)
    for command in ("compile", "tune"):
        monkeypatch.setattr("sys.argv", ["unigemm", command, "64", "64", "64"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", "unigemm: this cannot be done; do something else\n")


def test_help_speaks_of_every_array_library_and_of_parameters(tmp_path):
    assert all(name in run("--help", cache=tmp_path).stdout for name in ("NumPy", "JAX", "DLPack"))
    text = run("sweep", "--help", cache=tmp_path).stdout
    assert "Parameters that are not named" in " ".join(text.split())
    assert "nob" not in text


def test_the_words_for_scales_of_blocks_count_numbers_not_bytes(tmp_path):
    for dtype, words in (("nvfp4", "each 16 elements of K"), ("mxfp8", "each 32 elements of K")):
        done = run("plan", 256, 256, 256, "--dtype", dtype, "--target", "sm_100a", cache=tmp_path)
        assert words in " ".join(done.stdout.split())
