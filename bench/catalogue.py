"""Choose tiles from measured launches: ``python -m bench.catalogue cute_wgmma bfloat16``.

A greedy cover: the tile that brings the best launches of all problems nearest to the best that was
measured is taken first, and so on. What it prints is a draft of the table in the backend's
`tiles.py`, with the mean loss that is left after each tile. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bench.command import command
from bench.measured import Launch, launches
from unigemm.backends.common.coefficients import kind_of
from unigemm.planning.config import Config, Raster

#: What candidates have besides the tile: it is no part of the catalogue.
DRAWN_UP = {
    "split_k": 1, "cluster_k": 1, "slice_k": 1, "swap_ab": False, "raster": Raster(), "stages": 1,
    "remainder": (),
}  # fmt: skip


def tile_of(config: Config) -> Config:
    """Return what of a configuration is in a catalogue."""
    return replace(config, **DRAWN_UP)


def cover(
    measured: Sequence[Launch], most: int, tile: Callable[[Config], Config] = tile_of
) -> list[tuple[Config, float]]:
    """Return tiles, the most useful first, each with the mean loss in percent that is left."""
    best: dict[object, dict[Config, float]] = defaultdict(dict)
    for launch in measured:
        of_problem, key = best[launch.problem, launch.extents], tile(launch.config)
        of_problem[key] = min(of_problem.get(key, np.inf), launch.us)
    tiles = sorted({key for each in best.values() for key in each}, key=str)
    loss = np.full((len(best), len(tiles)), 1.0)  # a problem without a tile: as bad as e
    column = {key: i for i, key in enumerate(tiles)}
    for row, each in enumerate(best.values()):
        least = min(each.values())
        for key, us in each.items():
            loss[row, column[key]] = min(1.0, np.log(us / least))
    chosen, left = [], np.full(len(best), 1.0)
    for _ in range(min(most, len(tiles))):
        gains = np.minimum(loss, left[:, None]).mean(axis=0)
        at = int(gains.argmin())
        left = np.minimum(left, loss[:, at])
        chosen.append((tiles[at], 100 * float(left.mean())))
    return chosen


def main() -> None:
    """Print a catalogue."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("backend")
    parser.add_argument("kinds", help="of numbers, separated by commas: bfloat16,float16")
    parser.add_argument("--most", type=int, default=64)
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    found = [x for x in launches() if x.backend == args.backend and kind_of(x.problem) in kinds]
    for config, left in cover(found, args.most):
        print(f"{left:6.2f} %  {config}")


if __name__ == "__main__":
    command(main)
