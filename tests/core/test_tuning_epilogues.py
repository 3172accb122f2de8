"""Tuning of products with epilogues and scales, on devices that only pose as such."""

from __future__ import annotations

import json
from dataclasses import replace

import call_path
import numpy as np
import pytest
from call_path import scales_of_words

pytest.importorskip("cupy")

from fake_gpu import host
from stopwatch import TILES, arrays, begin_later_process, timed_calls

import unigemm
from unigemm.arrays.numpy_arrays import viewer
from unigemm.planning import tuned_plans
from unigemm.planning.tuned_plans import read
from unigemm.problem.dtypes import DType, numpy_dtype
from unigemm.support.env import own_tuning_file

BFLOAT16, FLOAT8 = DType.BFLOAT16, DType.FLOAT8_E4M3FN


def spec(shape, dtype="float32", **options):
    return unigemm.ArraySpec(shape, dtype, **options)


@pytest.fixture
def stopwatch(monkeypatch, tmp_path):
    yield from timed_calls(monkeypatch, tmp_path)


def autotune(stopwatch, a, b, out=None, **given):
    return unigemm.autotune(a, b, out, device=stopwatch, **{"budget": 1e-3, **given})


def halved(acc, x):
    return acc / 2 + x, acc


#: Arguments of calls with (32, 16) @ (16, 8), whose products are 16; and what the results are.
CALLS = {
    "bias": (lambda ones: {"bias": ones((8,)), "activation": "relu"}, {"out": 17}),
    "column": (lambda ones: {"bias": ones((32, 1)), "alpha": 2.0}, {"out": 33}),
    "numbers on the device": (lambda ones: {"alpha": ones((1,)), "beta": ones(()),
                                            "c": ones((32, 8))}, {"out": 17}),
    "preact": (lambda ones: {"bias": ones((1, 8)), "activation": "relu2",
                             "preact_out": ones((32, 8))}, {"out": 289, "preact_out": 17}),
    "gradient": (lambda ones: {"activation": "drelu", "preact": ones((32, 8))}, {"out": 16}),
    "gated": (lambda ones: {"activation": "swiglu", "gate_layout": "interleaved",
                            "c": ones((32, 8))}, {"out": 289}),
    "halves": (lambda ones: {"activation": "geglu", "gate_layout": "halves"}, {"out": 256}),
    "amax": (lambda ones: {"scale_d": 0.25, "amax_out": ones((1,))}, {"out": 4, "amax_out": 16}),
    "bias gradient": (lambda ones: {"alpha": 2.0, "bias_grad_out": ones((8,))},
                      {"out": 32, "bias_grad_out": 1024}),
    "function": (lambda ones: {"epilogue": halved, "epilogue_args": {"x": ones((8,))}},
                 {"out": 9, "result 1": 16}),
}  # fmt: skip


def specs_of(name):
    made, _ = CALLS[name]
    return made(lambda shape: spec(shape))


def multiplied(stopwatch, name, out=None, **options):
    """Multiply once, hold the results against those that are known, and return the tiles."""
    made, wanted = CALLS[name]
    given = made(stopwatch.driver.ones)
    stopwatch.launched.clear()
    found = unigemm.matmul(*arrays(stopwatch.driver), out, **given, **options)
    found = found if isinstance(found, tuple) else (found,)
    results = {"out": found[0], **{f"result {i}": x for i, x in enumerate(found[1:], 1)}}
    for which, value in wanted.items():
        got = host(results[which] if which in results else given[which])
        np.testing.assert_allclose(got, value, rtol=1e-6)
    return stopwatch.launched


@pytest.mark.parametrize("name", CALLS)
def test_a_product_with_an_epilogue_is_measured_and_calls_like_it_use_the_fastest(stopwatch, name):
    a, b = arrays(stopwatch.driver)
    plan = autotune(stopwatch, a, b, **specs_of(name))
    assert plan.config.tile == TILES["third"]
    assert plan.problem.epilogue is not None
    assert {*stopwatch.launched} == {*TILES.values()}
    assert multiplied(stopwatch, name) == [TILES["third"]]
    (entry,) = read(own_tuning_file())
    assert entry.plan == plan


@pytest.mark.parametrize("name", CALLS)
def test_a_first_call_with_an_epilogue_measures(stopwatch, name):
    with unigemm.autotuning():
        first = multiplied(stopwatch, name)
        assert {*first} == {*TILES.values()}
        assert first[-1] == TILES["third"]
        assert multiplied(stopwatch, name) == [TILES["third"]]
    assert multiplied(stopwatch, name) == [TILES["third"]]
    begin_later_process()
    with unigemm.autotuning():
        assert multiplied(stopwatch, name) == [TILES["third"]]


def test_what_is_tuned_serves_the_same_epilogue_whatever_its_numbers_and_no_other(stopwatch):
    (a, b), row = arrays(stopwatch.driver), spec((8,))

    def tile(**epilogue):
        return unigemm.plan(a, b, **epilogue).config.tile

    plan = autotune(stopwatch, a, b, bias=row, alpha=2.0, activation="silu")
    third, pick = TILES["third"], TILES["pick"]
    assert tile(bias=row, alpha=7.0, activation="silu") == third
    others = ({}, {"bias": row}, {"bias": row, "alpha": 2.0, "activation": "gelu"},
              {"bias": spec((32, 1)), "alpha": 2.0, "activation": "silu"},
              {"bias": spec((8,), "bfloat16"), "alpha": 2.0, "activation": "silu"})  # fmt: skip
    for other in others:
        assert tile(**other) == pick
    assert autotune(stopwatch, a, b).config.tile == third
    assert tile() == third
    assert tile(bias=row) == pick  # the plain product's is not taken for it
    (first, second) = read(own_tuning_file())
    assert first.plan.problem.epilogue == plan.problem.epilogue
    assert second.plan.problem.epilogue is None


def _d(gemm, d, *more):
    _plus_one(d, gemm.problem.d.dtype)


def _first_array(gemm, d, *more):
    at = len(gemm.problem.epilogue.arrays)
    _plus_one(more[at], gemm.problem.epilogue.stored[0].matrix.dtype)


def _bias_grads(gemm, d, *more):
    epilogue = gemm.problem.epilogue
    _plus_one(more[len(epilogue.arrays)], epilogue.totalled[0].matrix.dtype)


def _largest(gemm, d, *more):
    at = len(gemm.problem.epilogue.aux)
    _plus_one(more[at], DType.FLOAT32)


def _plus_one(address, dtype):
    viewer((), (), dtype)(address)[...] += 1


WRONG = {
    "preact D": ("preact", _d),
    "preact": ("preact", _first_array),
    "amax": ("amax", _largest),
    "another result": ("function", _first_array),
    "bias gradient": ("bias gradient", _bias_grads),
    "gated": ("gated", _d),
}


@pytest.mark.parametrize("online_too", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_a_fast_kernel_that_gets_one_result_wrong_loses(stopwatch, name, online_too):
    call, stopwatch.spoils[TILES["third"]] = WRONG[name]
    a, b = arrays(stopwatch.driver)
    if online_too:
        with (
            unigemm.autotuning(),
            pytest.warns(unigemm.TuningWarning, match="its result is wrong"),
        ):
            assert multiplied(stopwatch, call)[-1] == TILES["pick"]
        return
    with pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        plan = autotune(stopwatch, a, b, **specs_of(call))
    assert plan.config.tile == TILES["pick"]


@pytest.mark.parametrize("online_too", [False, True])
def test_a_fast_kernel_that_writes_nothing_loses_even_where_c_is_out(stopwatch, online_too):
    stopwatch.wrong = (TILES["third"],)
    a, b = arrays(stopwatch.driver)
    out = stopwatch.driver.ones((32, 8))
    if online_too:
        with (
            unigemm.autotuning(),
            pytest.warns(unigemm.TuningWarning, match="its result is wrong"),
        ):
            unigemm.matmul(a, b, out, c=out)
        np.testing.assert_array_equal(host(out), 17)
        return
    with pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        plan = autotune(stopwatch, a, b, out, c=out)
    assert plan.config.tile == TILES["pick"]
    np.testing.assert_array_equal(host(out), 1)


def test_out_is_accumulated_once_by_the_call_that_measures(stopwatch):
    a, b = arrays(stopwatch.driver)
    whole = stopwatch.driver.ones((64, 16))
    out = whole[::2, ::2]  # with strides of its own
    launch, seen = stopwatch.backend.launch, []

    def watched(kernel, gemm, *arguments):
        seen.append((arguments[2], arguments[5], host(out).min(), host(out).max()))
        launch(kernel, gemm, *arguments)

    stopwatch.backend.launch = watched
    with unigemm.autotuning():
        unigemm.matmul(a, b, out, c=out, beta=3.0)
    assert len(seen) > 3
    own = out.data.ptr
    assert all(own not in (d, c) and d == c and low == high == 1 for d, c, low, high in seen[:-1])
    assert seen[-1][:2] == (own, own)
    np.testing.assert_array_equal(host(out), 19)
    rest = host(whole).copy()
    rest[::2, ::2] = 1
    np.testing.assert_array_equal(rest, 1)
    assert stopwatch.launched[-1] == TILES["third"]
    with unigemm.autotuning():
        unigemm.matmul(a, b, out, c=out)
        unigemm.matmul(a, b, out, c=out)
    np.testing.assert_array_equal(host(out), 19 + 32)


def test_what_the_caller_brings_is_written_by_its_own_launch_alone(stopwatch):
    ones = stopwatch.driver.ones
    a, b = arrays(stopwatch.driver)
    written = {"preact_out": ones((64, 8))[::2], "amax_out": ones((1,))}
    out = ones((8, 32)).T
    for x in (out, *written.values()):
        host(x)[...] = 5
    launch, held = stopwatch.backend.launch, []

    def watched(*given):
        held.append([host(x).max() for x in (out, written["preact_out"])])
        launch(*given)

    stopwatch.backend.launch = watched
    with unigemm.autotuning():
        unigemm.matmul(a, b, out, activation="relu", **written)
    assert len(held) > 3
    assert held == [[5, 5]] * len(held)
    for x in (out, *written.values()):
        np.testing.assert_array_equal(host(x), 16)


def test_results_of_a_function_go_where_the_caller_says(stopwatch):
    a, b = arrays(stopwatch.driver)
    ones = stopwatch.driver.ones
    outs = ones((32, 8)), ones((64, 8))[::2]
    with unigemm.autotuning():
        unigemm.matmul(a, b, outs, epilogue=halved, epilogue_args={"x": 1.0})
    assert stopwatch.launched[-1] == TILES["third"]
    np.testing.assert_array_equal(host(outs[0]), 9)
    np.testing.assert_array_equal(host(outs[1]), 16)


def eights(stopwatch):
    kind = numpy_dtype(FLOAT8)
    return stopwatch.driver.ones((32, 16), kind), stopwatch.driver.ones((16, 8), kind)


@pytest.mark.parametrize("epilogue", [{}, {"activation": "relu"}], ids=["plain", "epilogue"])
def test_products_of_float8_with_scales_are_measured(stopwatch, epilogue):
    a, b = eights(stopwatch)
    scales = {"scale_a": 0.5, "scale_b": stopwatch.driver.ones(())}
    host(scales["scale_b"])[...] = 3

    def call():
        stopwatch.launched.clear()
        got = unigemm.matmul(a, b, dtype="bfloat16", **scales, **epilogue)
        np.testing.assert_array_equal(host(got).astype(float), 24)
        return stopwatch.launched

    with unigemm.autotuning():
        assert call()[-1] == TILES["third"]
        assert len(stopwatch.launched) > 3
        assert call() == [TILES["third"]]
    own_tuning_file().unlink()
    tuned_plans.forget()
    call_path.forget_calls()
    assert call() == [TILES["pick"]]
    named = {"dtype": "bfloat16", "scale_a": 0.5, "scale_b": spec(())}
    plan = autotune(stopwatch, a, b, **named, **epilogue)
    assert (plan.config.tile, plan.problem.scaled) == (TILES["third"], True)
    assert call() == [TILES["third"]]
    stopwatch.launched.clear()
    unigemm.matmul(a, b, dtype="bfloat16", **epilogue)
    assert stopwatch.launched == [TILES["pick"]]  # without scales it is another product


#: Scales of (32, 256) @ (256, 8) and how they are told in words.
FINE = {
    "row, column": ({"scale_a": (32, 1), "scale_b": (1, 8)}, ("row", "column")),
    "1x128, 128x128": ({"scale_a": (32, 2), "scale_b": (2, 1)}, ("1x128", "128x128")),
    "128x128, 1x128": ({"scale_a": (1, 2), "scale_b": (2, 8)}, ("128x128", "1x128")),
}


@pytest.mark.parametrize("epilogue", [{}, {"activation": "relu"}], ids=["plain", "epilogue"])
@pytest.mark.parametrize("name", FINE)
def test_products_with_scales_of_lines_and_blocks_are_measured(stopwatch, name, epilogue):
    shapes, words = FINE[name]
    ones, kind = stopwatch.driver.ones, numpy_dtype(FLOAT8)
    a, b = ones((32, 256), kind), ones((256, 8), kind)
    scales = {which: ones(shape) for which, shape in shapes.items()}
    host(scales["scale_a"])[..., 0] = 3
    expected = 256 * 3 if name == "row, column" else 128 * 4

    def call():
        stopwatch.launched.clear()
        got = unigemm.matmul(a, b, dtype="bfloat16", **scales, **epilogue)
        np.testing.assert_array_equal(host(got).astype(float), expected)
        return stopwatch.launched

    with unigemm.autotuning():
        assert call()[-1] == TILES["third"]
        assert len(stopwatch.launched) > 3
        assert call() == [TILES["third"]]
    (entry,) = read(own_tuning_file())
    own_tuning_file().unlink()
    tuned_plans.forget()
    call_path.forget_calls()
    assert call() == [TILES["pick"]]
    named = scales_of_words(*words, spec((32, 256), "e4m3"), spec((256, 8), "e4m3"))
    assert {which: x.shape for which, x in named.items()} == shapes
    plan = autotune(stopwatch, a, b, dtype="bfloat16", **named, **epilogue)
    assert plan.config.tile == TILES["third"]
    assert plan.problem == entry.plan.problem
    assert plan.problem.has_block_scales == (name != "row, column")
    assert call() == [TILES["third"]]
    stopwatch.launched.clear()
    unigemm.matmul(a, b, dtype="bfloat16", scale_a=2.0, scale_b=ones((1,)), **epilogue)
    assert stopwatch.launched == [TILES["pick"]]  # with other scales it is another product


def test_a_kernel_that_takes_the_scales_of_another_block_loses(stopwatch):
    ones, kind = stopwatch.driver.ones, numpy_dtype(FLOAT8)
    a, b = ones((32, 256), kind), ones((256, 8), kind)
    scales = {"scale_a": ones((32, 2)), "scale_b": ones((2, 1))}
    host(scales["scale_a"])[..., 0] = 3
    launch = stopwatch.backend.launch

    def shifted(kernel, gemm, *arguments):
        if stopwatch.launched[-1] == TILES["third"]:
            arguments = (*arguments[:5], arguments[5] + 4, *arguments[6:])  # one float32 further on
        launch(kernel, gemm, *arguments)

    stopwatch.backend.launch = shifted
    with unigemm.autotuning(), pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        unigemm.matmul(a, b, dtype="bfloat16", **scales)
    (entry,) = read(own_tuning_file())
    assert entry.plan.config.tile == TILES["pick"]


def test_a_kernel_that_leaves_out_the_scales_loses(stopwatch):
    a, b = eights(stopwatch)
    launch = stopwatch.backend.launch

    def unscaled(kernel, gemm, *arguments):
        if stopwatch.launched[-1] == TILES["third"]:
            arguments = (*arguments[:7], 1.0)
        launch(kernel, gemm, *arguments)

    stopwatch.backend.launch = unscaled
    with pytest.warns(unigemm.TuningWarning, match="its result is wrong"):
        plan = autotune(stopwatch, a, b, dtype="bfloat16", scale_a=3.0)
    assert plan.config.tile == TILES["pick"]


def test_a_call_that_is_refused_measures_nothing(stopwatch):
    a, b = arrays(stopwatch.driver)
    ones = stopwatch.driver.ones
    out, other = ones((32, 8)), ones((32, 8), device=1)
    overlapping = ones((33, 8))
    refused = (
        (unigemm.OverlapError, overlapping[:32], {"c": overlapping[1:]}),
        (unigemm.OverlapError, out, {"preact_out": out, "activation": "relu"}),
        (unigemm.DeviceMismatch, out, {"c": other}),
        (unigemm.ShapeMismatch, out, {"bias": ones((7,))}),
    )
    with unigemm.autotuning():
        for error, into, given in refused:
            with pytest.raises(error):
                unigemm.matmul(a, b, into, **given)
        x, y = eights(stopwatch)
        with pytest.raises(unigemm.DeviceMismatch):
            unigemm.matmul(x, y, scale_a=ones((), device=1))
    assert not stopwatch.launched


NOT_SHARED = {
    "neighbours in one memory": lambda whole: (whole[:, :8], {"c": whole[:, 8:]}),
    "c that is not read": lambda whole: (whole[:, :8], {"c": whole[:, :8], "beta": 0.0}),
}


@pytest.mark.parametrize("kind", NOT_SHARED)
def test_a_call_whose_arrays_only_seem_to_share_memory_is_measured(stopwatch, kind):
    out, given = NOT_SHARED[kind](stopwatch.driver.ones((32, 16)))
    with unigemm.autotuning():
        unigemm.matmul(*arrays(stopwatch.driver), out, **given)
    assert {*stopwatch.launched} == {*TILES.values()}
    assert stopwatch.launched[-1] == TILES["third"]
    np.testing.assert_array_equal(host(out), 16 if "beta" in given else 17)


def test_a_capture_measures_no_call_with_an_epilogue_and_a_later_call_does(stopwatch):
    with unigemm.autotuning():
        stopwatch.driver.capturing = True
        assert multiplied(stopwatch, "bias") == [TILES["pick"]]
        stopwatch.driver.capturing = False
        assert multiplied(stopwatch, "bias")[-1] == TILES["third"]


@pytest.mark.parametrize("option", ["deterministic", "batch_invariant"])
def test_an_epilogue_of_which_bits_are_promised_is_never_measured(stopwatch, option):
    stopwatch.backend.batch_invariant = True
    with unigemm.autotuning():
        assert len(multiplied(stopwatch, "bias", **{option: True})) == 1
    assert not own_tuning_file().exists()


def test_what_the_measuring_itself_multiplies_is_not_measured(stopwatch, monkeypatch):
    def products(*given, real=stopwatch.products):
        unigemm.matmul(*given[:2], alpha=3.0)  # as under `unigemm.torch.use`
        return real(*given)

    monkeypatch.setattr(stopwatch, "products", products)
    with unigemm.autotuning():
        assert multiplied(stopwatch, "bias")[-1] == TILES["third"]


STACKS = {
    "rows in front": (((3, 5, 16), (16, 8)), (8,)),
    "a stack": (((3, 5, 16), (3, 16, 8)), (3, 1, 8)),
    "a turned result": (((5, 16), (16, 8)), (5, 1)),
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks_and_turned_results_are_measured_as_they_lie(stopwatch, name):
    (a, b), bias = STACKS[name]
    out = spec((5, 8), order="F") if name == "a turned result" else None
    given = {"bias": spec(bias), "activation": "relu"}
    ones = stopwatch.driver.ones
    plan = autotune(stopwatch, ones(a), ones(b), out, **given)
    assert plan.config.tile == TILES["third"]
    stopwatch.launched.clear()
    into = None if out is None else ones((8, 5)).T
    got = unigemm.matmul(ones(a), ones(b), into, bias=ones(bias), activation="relu")
    np.testing.assert_array_equal(host(got), 17)
    assert stopwatch.launched == [TILES["third"]]


def test_a_sets_arrays_are_its_own_and_exceed_the_l2_together(stopwatch):
    seen = set()
    launch = stopwatch.backend.launch

    def watched(kernel, gemm, *arguments):
        seen.add((arguments[0], arguments[2], arguments[5], arguments[6]))
        launch(kernel, gemm, *arguments)

    stopwatch.backend.launch, stopwatch.l2_bytes = watched, 10_000
    stopwatch.us = dict.fromkeys(stopwatch.us, 100.0)
    given = {"bias": spec((8,)), "activation": "relu", "preact_out": spec((32, 8))}
    autotune(stopwatch, *arrays(stopwatch.driver), budget=0.02, **given)
    size = 4 * (32 * 16 + 16 * 8 + 8 + 2 * 32 * 8)
    by_operand = [len({each[i] for each in seen}) for i in range(4)]
    assert all(size * count > 2 * stopwatch.l2_bytes for count in by_operand)


HOSTILE = {
    "a step of what is not there": lambda x: x["steps"].append({"op": "add", "of": [0, 99]}),
    "a step that is not known": lambda x: x["steps"].append({"op": "system", "of": [0]}),
    "another result": lambda x: x.update(result=77),
    "a number too many": lambda x: x.update(numbers=-1),
    "more than is known": lambda x: x.update(newer=1),
    "an array of no type": lambda x: x["arrays"][0]["matrix"].update(dtype="object"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_tuned_epilogue_that_is_none_is_left_out_and_stays_in_the_file(stopwatch, kind):
    (a, b), row = arrays(stopwatch.driver), spec((8,))
    autotune(stopwatch, a, b, bias=row)
    path = own_tuning_file()
    data = json.loads(path.read_text())
    HOSTILE[kind](data["entries"][0]["plan"]["problem"]["epilogue"])
    path.write_text(json.dumps(data))
    tuned_plans.forget()
    with pytest.warns(unigemm.TuningWarning, match="1 of 1 entries of .* are left out"):
        assert unigemm.plan(a, b, bias=row).config.tile == TILES["pick"]
    assert json.loads(path.read_text()) == data


def test_a_file_from_before_epilogues_is_read(stopwatch):
    a, b = arrays(stopwatch.driver)
    plan = autotune(stopwatch, a, b)
    path = own_tuning_file()
    data = json.loads(path.read_text())
    del data["entries"][0]["plan"]["problem"]["epilogue"]
    path.write_text(json.dumps(data))
    tuned_plans.forget()
    assert unigemm.plan(a, b).config.tile == TILES["third"]
    assert replace(plan, measured_us=0.0) == replace(read(path)[0].plan, measured_us=0.0)


def test_the_command_line_tunes_with_an_epilogue(stopwatch, monkeypatch, capsys):
    from unigemm.cli import main as cli
    from unigemm.tuning import autotune as module

    tuned, measured = [], module.autotune

    def taken(a, b, **given):
        tuned.append(given)
        x, y = (stopwatch.driver.ones(each.shape, numpy_dtype(each.dtype)) for each in (a, b))
        return measured(x, y, device=stopwatch, **given)

    monkeypatch.setattr(module, "autotune", taken)

    def said(*words, code=0, k="16"):
        sizes = ("32", "8", k)
        monkeypatch.setattr("sys.argv", ["unigemm", "tune", *sizes, "--json", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code or 0) == code
        return json.loads(capsys.readouterr().out)

    plan = said("--epilogue", "bias,gelu_tanh,preact_out", "--budget", "0.001")
    assert plan["tile"] == list(TILES["third"])
    assert tuned[0]["bias"].shape == (8,)
    assert tuned[0]["activation"] == "gelu_tanh"
    plan = said("--groups", "4", "--epilogue", "relu", "--budget", "0.001")
    assert (plan["problem"]["groups"]["along"], plan["extents"]["groups"]) == ("m", 4)
    blocks = ("--dtype", "float8_e4m3fn", "--scale-a", "1x128", "--scale-b", "128x128:x")
    assert "not supported" in said(*blocks, code=2)["error"]["message"]
    plan = said(*blocks[:-1], "128x128", "--budget", "0.001", k="256")
    assert plan["problem"]["scales"]["a"]["granularity"] == "1x128"
    assert tuned[-1]["scale_b"].shape == (2, 1)
    assert "not known" in said("--epilogue", "bais", code=2)["error"]["message"]
    assert "along 'q'" in said("--groups", "4", "--along", "q", code=2)["error"]["message"]
    assert "some seconds" in said("--budget", "nan", code=2)["error"]["message"]
    assert "for float8" in said("--epilogue", "scale_a", code=2)["error"]["message"]
