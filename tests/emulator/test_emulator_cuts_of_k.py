"""Rows of a batch-invariant product have the same bits wherever they lie, however K is cut."""

from __future__ import annotations

import pytest
from cuts_of_k import CUT, cases, differing
from emulated_products import POISONED
from sampling import ALL

from unigemm.emulator import device

pytestmark = POISONED

#: How many cases of each backend an ordinary run takes, those with the most pairs of values.
MOST = {"cute_simt": 8, "cute_tcgen05": 4, "cute_wgmma": 10}


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", sorted(MOST))
def test_rows_have_the_same_bits_in_every_batch(name, part):
    failed = []
    for case in cases(name)[: None if ALL else MOST[name]][part::2]:
        with device(CUT[name].arch, seed=case.seed):
            wrong = differing(case, lambda x: x, lambda x: x)
        failed += [f"{case}\n{wrong}"] if wrong else []
    assert not failed, "\n\n".join(failed)


def test_all_ways_of_cutting_k_are_among_the_cases():
    kinds = {name: [dict(case.kind) for case in cases(name)] for name in CUT}
    wgmma, simt = kinds["cute_wgmma"], kinds["cute_simt"]
    # Where tiles are transposed, rows lie along the columns that a cluster's CTAs share out.
    assert {x["cluster_k"] for x in wgmma if x["swap_ab"]} == {1, 2, 4, 8}
    assert any(x["cluster_k"] > 2 and x["swap_ab"] for x in wgmma[: MOST["cute_wgmma"]])
    assert {x["slice_k"] for x in wgmma} == {1, 2}
    assert {x["split_k"] for x in wgmma} == {1, 2, 3, 4}
    assert {x["schedule"] for x in simt} == {"", "dmma", "dot"}
    assert {x["cluster_k"] for x in simt} == set(range(1, 9))
    assert all(x["remainder"] == 0 for some in kinds.values() for x in some)
    assert all(x["split_k"] > 1 for name in ("cute_tcgen05", "cutile") for x in kinds[name])
