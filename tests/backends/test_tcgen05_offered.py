"""Every configuration that cute_tcgen05 offers: its machine code, and what it multiplies.

`tcgen05_plans.offers` lists them all; an ordinary run draws some of each kind.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from call_path import kernel_entry
from tcgen05_plans import KINDS, PAIRS_OF_4, Offer, chosen, offers, plan_of, spread
from tcgen05_products import multiply

from unigemm.backends.cute_tcgen05.candidates import offered
from unigemm.backends.cute_tcgen05.geometry import COLUMNS, PREFETCHED, geometry, is_repacked
from unigemm.cache import Entry
from unigemm.cache.sass import disassemble, instruction_mix
from unigemm.emulator import device
from unigemm.emulator.launch.host import missing
from unigemm.planning.plan import Plan
from unigemm.problem.dtypes import FLOAT8, DType

REGISTERS = 64 * 1024  # of an SM


def test_the_list_has_every_kind_layout_and_configuration_on_every_architecture():
    of_config = {}
    for offer in offers():
        of_config.setdefault((offer.kind, offer.config), []).append(offer)
        assert offers()[offer.number] is offer
    for (kind, _), found in of_config.items():
        assert {offer.arch for offer in found} == set(kind.architectures)
    for kind in KINDS:
        for layout in ("nn", "nt", "tn", "tt"):
            mine = [o for o in offers() if o.kind is kind and o.layout == layout]
            assert {store for o in mine for _, store in o.results} == {"tma", "rows", "direct"}


@pytest.mark.compile
@pytest.mark.parametrize("offer", chosen(offers(), 1), ids=str)
def test_an_offered_configuration_compiles_without_spills_and_multiplies_right(
    monkeypatch, offer: Offer
):
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    spread(monkeypatch, offer)
    plan = plan_of(offer)
    assert offer.config in offered(plan.problem, plan.target)
    entry = kernel_entry(plan)
    assert_limits(plan, entry)
    assert_instructions(plan, entry)
    ptx = Path(entry.files["kernel.ptx"]).read_text()
    if plan.problem.blocks:
        assert_scaled_products(plan, entry, ptx)
    assert_loads_are_waited_for(ptx)
    if missing():
        pytest.skip(missing())
    with device(plan.target, seed=offer.number, lockstep=offer.number % 4 > 0) as gpu:
        multiply(plan, offer.number)
    launched = [launch for launch, _ in gpu.launches if launch.kernel.startswith("tcgen05")]
    assert [launch.cluster[:2] for launch in launched] == [plan.config.cluster]
    assert launched[0].shared_bytes == geometry_of(plan).smem_bytes


def geometry_of(plan: Plan):
    return geometry(plan.config.oriented(plan.problem), plan.config)


def assert_limits(plan: Plan, entry: Entry) -> None:
    geo = geometry_of(plan)
    assert entry.info.spill_bytes == 0
    assert geo.smem_bytes <= plan.target.smem_per_block
    assert entry.info.smem_bytes <= plan.target.smem_per_sm  # with what the driver reserves
    assert geo.tensor_columns <= COLUMNS
    assert entry.info.registers * 32 * geo.warps <= REGISTERS


def opcode_of(plan: Plan) -> str:
    dtype = plan.problem.a.dtype
    others = {DType.INT8: "UTCIMMA", PAIRS_OF_4: "UTCOMMA"}
    return "UTCQMMA" if dtype in FLOAT8 else others.get(dtype, "UTCHMMA")


def scale_tiles(plan: Plan) -> int:
    """Return the tiles of scales for 128 bytes of K."""
    if not plan.problem.blocks:
        return 0
    return (1 + -(-plan.config.tile[1] // 128)) * (4 if plan.problem.a.dtype is PAIRS_OF_4 else 1)


def assert_instructions(plan: Plan, entry: Entry) -> None:
    ops, geo = instruction_mix(entry.files), geometry_of(plan)
    # Four instructions of 32 bytes of K for a k_tile, with scales also of one that K ends in; the
    # ends of k_tiles and units are announced.
    written = 2 if plan.problem.blocks else 1
    assert ops[opcode_of(plan)] == 4 * written
    assert ops["UTCBAR"] == 1 + written
    assert ops["UTMALDG"] >= 2 * written
    assert ops.get("UTCCP", 0) == written * scale_tiles(plan)
    seen = plan.config.oriented(plan.problem)
    copied = sum(is_repacked(seen, name) for name in "ab")
    prefetched = ops.get("UTMAPF", 0)
    assert prefetched >= PREFETCHED * (2 - copied)
    assert prefetched == 0 if copied == 2 else prefetched % PREFETCHED == 0
    if not copied and not plan.problem.blocks:  # each box that is loaded
        assert prefetched == PREFETCHED * ops["UTMALDG"]
    assert ("UGETNEXTWORKID" in ops) == geo.dynamic
    assert ops["LDTM"] >= 1
    boxes = plan.config.tile[1] // geo.box_columns if geo.store == "tma" else 0
    assert ops.get("UTMASTG", 0) == boxes


def assert_scaled_products(plan: Plan, entry: Entry, ptx: str) -> None:
    """The products read scales in tensor memory, too, and have the form of their kind."""
    sass = disassemble(Path(entry.files["kernel.cubin"]).read_bytes())
    packed, opcode = plan.problem.a.dtype is PAIRS_OF_4, opcode_of(plan)
    pair = r"\.2CTA" if "pair" in plan.config.schedule else ""
    form = r"\.(?:4X|BLOCK16)" if packed else ""
    scaled = rf"{opcode}{pair}{form} gdesc\S+ gdesc\S+ tmem\S+ tmem\S+ idesc\S+ tmem\["
    assert len(re.findall(scaled, sass)) == 2 * 4
    copies = re.findall(rf"UTCCP\.T\.S{pair}\.4x32dp128bit", sass)
    assert len(copies) == 2 * scale_tiles(plan)
    kind = "mxf4nvf4.block_scale.scale_vec::4X" if packed else "mxf8f6f4.block_scale.scale_vec::1X"
    assert ptx.count(f".kind::{kind}") == 2 * 4
    assert len(re.findall(r"@there tcgen05\.mma", ptx)) == 4  # of a k_tile that K ends in
    assert ptx.count("cp.async.bulk.tensor.5d.shared") == 2  # scales of A, and of B
    orders = (plan.problem.blocks.a, plan.problem.blocks.b)
    assert ("scale_tiles" in ptx) == ("plain" in orders)


def assert_loads_are_waited_for(ptx: str) -> None:
    """The emulator loads at once; hardware may still read when a buffer is handed back."""
    steps = re.findall(r"tcgen05\.ld|tcgen05\.wait::ld|mbarrier\.arrive", ptx)
    reading = False
    for step in steps:
        assert not (reading and step == "mbarrier.arrive")
        reading = step == "tcgen05.ld" or (reading and step != "tcgen05.wait::ld")
    assert "tcgen05.ld" in steps
    assert not reading
