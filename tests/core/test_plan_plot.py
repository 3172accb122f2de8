"""Pictures of plans: what they show agrees with the plan, and what cannot be drawn is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from typer.testing import CliRunner

import unigemm
from unigemm.cli.main import app
from unigemm.planning.config import Config, Raster
from unigemm.problem.problem import Extents

pytest.importorskip("matplotlib")

from unigemm.tuning import plot
from unigemm.tuning.plan_plot import drawn_plan, peak_rates, wave_numbers


def planned(m=1000, n=900, k=512, dtype="bfloat16", target="h100", **options):
    a, b = unigemm.ArraySpec((m, k), dtype), unigemm.ArraySpec((k, n), dtype)
    return unigemm.plan(a, b, target=target, **options)


@pytest.mark.parametrize("order", ["m", "n"])
@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_tiles_are_counted_in_the_order_of_the_raster(order, group, cluster):
    plan = planned()
    small = replace(plan.target, sm_count=8)
    config = Config((64, 64, 64), cluster=cluster, raster=Raster(order, group))
    plan = replace(plan, config=config, extents=Extents(64 * 10, 64 * 14 - 3, 512), target=small)
    waves, count = wave_numbers(plan)
    size = cluster[0] * cluster[1]
    rows, columns = ceil(10 / cluster[0]), ceil(14 / cluster[1])
    swept, grouped = (rows, columns) if order == "m" else (columns, rows)
    tiles = [
        (along, across) if order == "m" else (across, along)
        for band in range(0, grouped, group)
        for along in range(swept)
        for across in range(band, min(band + group, grouped))
    ]
    expected = np.full((10, 14), -1)
    for index, (i, j) in enumerate(tiles):
        expected[i * cluster[0] : (i + 1) * cluster[0], j * cluster[1] : (j + 1) * cluster[1]] = (
            index // (8 // size)
        )
    np.testing.assert_array_equal(waves, expected)
    assert count == expected.max() + 1


def test_parts_of_k_and_products_of_a_stack_take_waves_too():
    plan = planned()
    config = Config((64, 64, 64), split_k=3)
    size = Extents(64 * 11, 64 * 12, 512, 5)
    assert wave_numbers(replace(plan, config=config, extents=size))[1] == ceil(11 * 12 * 15 / 132)


def test_a_transposed_product_is_shown_as_the_kernel_sees_it():
    plan = replace(
        planned(), config=Config((64, 32, 64), swap_ab=True), extents=Extents(32, 640, 64)
    )
    assert wave_numbers(plan)[0].shape == (10, 1)


@pytest.mark.parametrize(
    ("dtype", "options", "tflops"),
    [
        ("bfloat16", {}, {"tensor cores": 1071, "FMA units": 66.9}),
        ("int8", {}, {"tensor cores": 2142}),
        ("float64", {}, {"FMA units": 33.5, "tensor cores": 66.9}),
        ("float32", {}, {"FMA units": 66.9}),
        ("float32", {"precision": "tf32"}, {"FMA units": 66.9, "tensor cores": 535}),
    ],
)
def test_the_roof_is_that_of_the_data_sheet(dtype, options, tflops):
    # An H100's data sheet, at the 1980 MHz of its boost clock.
    assert peak_rates(planned(dtype=dtype, **options)) == pytest.approx(tflops, rel=2e-3)


def test_the_bars_add_up_to_the_estimates_and_the_pick_is_at_its_rate():
    plan = planned()
    figure = drawn_plan(plan)
    roofline, _, times = figure.axes  # in the order of the mosaic
    lengths = np.zeros(len(times.containers[0]))
    for bars in times.containers:
        lengths += [bar.get_width() for bar in bars]
    ranked = [plan, *plan.alternatives][: len(lengths)]
    assert len(ranked) > 3
    np.testing.assert_allclose(lengths, [each.predicted_us for each in ranked], rtol=0.02)
    (pick,) = (x for x in roofline.lines if x.get_label().startswith("the pick"))
    assert pick.get_ydata()[0] == pytest.approx(plan.extents.flops / plan.predicted_us * 1e-6)


def test_assumed_times_are_called_so_in_the_picture():
    for target, assumed in (("h100", False), ("b200", True)):
        figure = drawn_plan(planned(target=target))
        roofline, _, times = figure.axes
        (pick,) = (x for x in roofline.lines if x.get_label().startswith("the pick"))
        assert ("assumed" in times.get_xlabel()) is assumed
        assert ("assumed" in pick.get_label()) is assumed


def test_the_command_draws_and_says_what_it_cannot_draw(tmp_path):
    def command(*words):
        done = CliRunner().invoke(app, ["plan", "512", "512", "512", *words])
        return done.exception

    picture = tmp_path / "plan.svg"
    assert command("--target", "sm_80", "--plot", str(picture)) is None
    assert "512x512x512 on sm_80" in picture.read_text()
    for words, said in (
        (("--target", "sm_80", "--plot", "plan.txt"), "use .svg, .png, .pdf"),
        (("--target", "cpu", "--plot", str(picture)), "--target h100"),
        (("--target", "sm_80", "--target", "h100", "--plot", str(picture)), "one --target"),
    ):
        error = command(*words)
        assert isinstance(error, unigemm.UnsupportedProblem)
        assert said in str(error)


@pytest.mark.parametrize("times", [(150.0, 480.0), (1.3, 1.9), (0.8, 6500.0)])
def test_labels_of_a_sweeps_logarithmic_axes_do_not_overlap(times):
    row = {"problem": "a problem", "backend": "cute_simt", "error": "", "tflops": 1, "vs_cublas": 1}
    figure = plot.drawn([{**row, "us": us, "predicted_us": 1.1 * us} for us in times])
    figure.draw_without_rendering()
    for axis, low, high in (
        (figure.axes[0].xaxis, "x0", "x1"),
        (figure.axes[0].yaxis, "y0", "y1"),
    ):
        texts = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
        shown = [each.get_window_extent() for each in texts if each.get_text()]
        ends = sorted((getattr(each, low), getattr(each, high)) for each in shown)
        assert ends
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
