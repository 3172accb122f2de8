"""Pictures of plans: the target's roofline, the raster of the tiles, the parts of the time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedProblem
from ..planning.plan import Plan
from ..planning.prediction import PARTS, Alternative
from ..problem.dtypes import DType
from .plot import number, require_matplotlib, save

if TYPE_CHECKING:
    import numpy as np

__all__ = ["drawn_plan", "peak_rates", "wave_numbers", "write_plan_plot"]

_INCHES = (8, 8.5)
_SIZE = 9.5  # points: still read where the picture is made a little smaller
_MOST_TILES = 256  # drawn along each side: more cannot be told apart
_MOST_NUMBERS = 40  # waves that are numbered
_THIN = 3  # a raster so much longer than wide is stretched
_MOST_BARS = 8
_THICK = 0.4  # of a bar, whose name stands above it
_DARK = "#111111"  # on colours that are bright on any page, and so no black (see `plot.save`)
_DOUBLE_MMA = (8, 0), (9, 0)  # capabilities whose tensor cores double the rate of float64


def write_plan_plot(path: Path, plan: Plan) -> None:
    """Draw a plan for a GPU.

    On the left is the roofline of the target, with the pick and what lost to it at their estimated
    rates; beside it the tiles of D, by the wave in which an SM gets them; below the estimated
    times, split into their parts.

    Parameters
    ----------
    path
        The picture, in the format of its suffix: svg, png or pdf.
    plan
        A plan for a GPU.

    Raises
    ------
    BackendUnavailable
        matplotlib is not installed.
    UnsupportedProblem
        The plan is for the host, which has no tiles and no known rates.
    """
    require_matplotlib()
    if plan.problem.groups is not None:
        raise UnsupportedProblem(
            "a picture shows the tiles of one product, and this one has groups; draw that of "
            "one group"
        )
    if not plan.target.is_gpu:
        raise UnsupportedProblem(
            "a plan for the host has no tiles to draw; name a GPU, such as --target h100"
        )
    save(drawn_plan(plan), path)


def drawn_plan(plan: Plan) -> Any:
    """Return the figure that `write_plan_plot` writes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    figure.suptitle(f"{plan.extents} on {plan.target}\n{plan.backend} {plan.config}", fontsize=11)
    axes = figure.subplot_mosaic([["roofline", "tiles"], ["times", "times"]])
    _draw_roofline(axes["roofline"], plan)
    _draw_tiles(axes["tiles"], plan)
    _draw_times(axes["times"], plan)
    return figure


def peak_rates(plan: Plan) -> dict[str, float]:
    """Return the peak rates in TFLOP/s of the target's units that may multiply the plan's types."""
    target, dtype = plan.target, plan.problem.a.dtype
    per_clock: dict[str, float] = {}
    if dtype is DType.FLOAT64:
        per_clock["FMA units"] = target.fp64_lanes
        if target.capability in _DOUBLE_MMA:
            per_clock["tensor cores"] = 2 * target.fp64_lanes
    elif dtype is DType.FLOAT32:
        per_clock["FMA units"] = target.fp32_lanes
        if plan.problem.precision != "ieee":
            passes = 3 if plan.problem.precision == "3xtf32" else 1
            per_clock["tensor cores"] = target.tensor_rate(dtype) / passes
    else:
        per_clock["tensor cores"] = target.tensor_rate(dtype)
        if dtype in (DType.FLOAT16, DType.BFLOAT16):
            per_clock["FMA units"] = target.fp32_lanes
    scale = 2 * target.sm_count * target.clock_mhz * 1e-6
    return {name: each * scale for name, each in per_clock.items()}


def wave_numbers(plan: Plan) -> tuple[np.ndarray, int]:
    """Return in which wave each tile of the first product begins, and how many waves there are.

    Tiles are counted in the order of the raster and dealt to the SMs in turn. Where the plan does
    not say how many CTAs an SM holds it is taken for one. Rows are tiles along M of what the kernel
    computes (the transpose, with `swap_ab`), and at most 256 of each index are returned.
    """
    import numpy as np

    config, extents = plan.config, plan.config.oriented(plan.extents)
    cluster_m, cluster_n = config.cluster
    tiles_m = -(-extents.m // (config.tile[0] * cluster_m))  # in clusters
    tiles_n = -(-extents.n // (config.tile[1] * cluster_n))
    ctas = cluster_m * cluster_n * config.cluster_k
    at_once = max(1, plan.target.sm_count * max(1, config.occupancy) // ctas)
    parts = config.split_k
    row, column = np.ogrid[: min(tiles_m, _MOST_TILES), : min(tiles_n, _MOST_TILES)]
    along_m = config.raster.order == "m"
    along, across = (row, column) if along_m else (column, row)
    swept, grouped = (tiles_m, tiles_n) if along_m else (tiles_n, tiles_m)
    group = min(config.raster.group, grouped)
    band = across // group
    width = np.minimum(group, grouped - band * group)  # the last band may be narrower
    running = band * group * swept + along * width + across % group
    waves = running // at_once
    each = np.repeat(np.repeat(waves, cluster_m, 0), cluster_n, 1)[:_MOST_TILES, :_MOST_TILES]
    tiles = -(-extents.m // config.tile[0]), -(-extents.n // config.tile[1])
    total = tiles_m * tiles_n * parts * extents.batch
    return each[: tiles[0], : tiles[1]], -(-total // at_once)


def _ranked(plan: Plan) -> list[Alternative]:
    return [plan.as_alternative, *plan.alternatives][:_MOST_BARS]


def _draw_roofline(axes: Any, plan: Plan) -> None:
    import numpy as np

    extents, target = plan.estimated_for or plan.extents, plan.target
    rates = peak_rates(plan)
    intensity = extents.flops / extents.bytes_moved(plan.problem)
    bandwidth = target.dram_gbs * 1e-3  # TFLOP/s for one operation a byte
    ends = np.array([min(1.0, intensity / 4), 4 * max(intensity, max(rates.values()) / bandwidth)])
    for style, (name, rate) in zip(("-", "--"), sorted(rates.items(), key=_falling), strict=False):
        knee = rate / bandwidth
        axes.plot(
            [ends[0], knee, ends[1]],
            [ends[0] * bandwidth, rate, rate],
            color="grey",
            linestyle=style,
            label=f"{name}, {rate:,.4g} TFLOP/s",
        )
    lost = [extents.flops / each.predicted_us * 1e-6 for each in plan.alternatives]
    axes.plot([intensity] * len(lost), lost, "_", color="tab:orange", label="what lost")
    pick = extents.flops / plan.predicted_us * 1e-6
    assumed = " assumed" * plan.assumed
    label = f"the pick, {pick:,.4g} TFLOP/s{assumed}"
    axes.plot([intensity], [pick], "o", color="tab:blue", label=label)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte of device memory")
    number(axes.xaxis, [*map(float, ends)])
    number(axes.yaxis, [float(ends[0]) * bandwidth, pick])
    axes.set(ylabel="TFLOP/s", title=f"roofline, {target.dram_gbs:,} GB/s")
    axes.legend(fontsize=_SIZE, loc="lower right")


def _falling(item: tuple[str, float]) -> float:
    return -item[1]


def _draw_tiles(axes: Any, plan: Plan) -> None:
    import numpy as np
    from matplotlib.ticker import FixedLocator, MaxNLocator

    waves, count = wave_numbers(plan)
    config, extents = plan.config, plan.config.oriented(plan.extents)
    tile_m, tile_n, _ = config.tile
    all_m, all_n = -(-extents.m // tile_m), -(-extents.n // tile_n)
    cut = waves.shape != (all_m, all_n)
    last = max(1, int(waves.max()))
    axes.imshow(waves, cmap="viridis", vmin=-last / 4, vmax=last, interpolation="nearest")
    most = max(waves.shape)
    if stretched := most > _THIN * min(waves.shape):
        axes.set_aspect("auto")
    for axis, tiles in ((axes.yaxis, waves.shape[0]), (axes.xaxis, waves.shape[1])):
        bins = 8 if stretched else max(1, 8 * tiles // most)  # a short axis has room for few
        axis.set_major_locator(MaxNLocator(bins, integer=True) if tiles > 1 else FixedLocator([0]))
    for wave in range(min(last + 1, _MOST_NUMBERS)):
        inside = np.argwhere(waves == wave)
        if len(inside):
            i, j = inside[len(inside) // 2]
            color = _DARK if wave > last / 2 else "white"
            axes.text(j, i, str(wave + 1), ha="center", va="center", fontsize=_SIZE, color=color)
    copies = "".join(
        f" x {number} {what}"
        for number, what in ((config.split_k, "parts of K"), (extents.batch, "products"))
        if number > 1
    )
    sms = plan.target.sm_count
    held = f"{sms} SMs with {config.occupancy} CTAs each" if config.occupancy > 1 else f"{sms} SMs"
    axes.set(
        title=f"{all_m} x {all_n} tiles of {tile_m}x{tile_n}{copies}\n"
        f"{count} wave{'s' * (count > 1)} on {held}{', the first tiles' * cut}",
        xlabel="tiles along " + ("M (swapped)" if config.swap_ab else "N"),
        ylabel="tiles along " + ("N (swapped)" if config.swap_ab else "M"),
    )


def _draw_times(axes: Any, plan: Plan) -> None:
    import numpy as np

    ranked = _ranked(plan)
    heights = range(len(ranked))
    left = np.zeros(len(ranked))
    for index, name in enumerate(PARTS):
        us = np.array([getattr(each.parts, name) * each.parts.correction for each in ranked])
        if us.any():
            axes.barh(heights, us, _THICK, left, label=name, color=f"C{index}")
            left += us
    unsplit = np.array([each.predicted_us for each in ranked]) - left
    if (unsplit > 1e-3 * left.max()).any():
        axes.barh(heights, unsplit.clip(0), _THICK, left, label="not split", color="lightgrey")
    for height, each in zip(heights, ranked, strict=True):
        name = f"{each.backend} {each.config}, limited by {each.limiter}"
        axes.text(0, height - _THICK / 2, name, va="bottom", fontsize=_SIZE)
    axes.set_yticks([])
    axes.set_ylim(len(ranked) - 0.6, -0.8)  # the first on top, with room for its name
    worth = "assumed: the cost model was fitted to other devices" if plan.assumed else "estimated"
    axes.set(xlabel=f"us, {worth}" if plan.assumed else "estimated us")
    axes.set(title="the pick, and what lost to it")
    axes.legend(fontsize=_SIZE, loc="upper left", bbox_to_anchor=(1, 1))
