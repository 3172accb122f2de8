"""Products with groups on a GPU: every form and type, guarded memory, graphs, offsets at random."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import needs_hopper

import unigemm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.gpu

GUARD = 512  # elements before and behind D
SIZES = (300, 0, 1, 129, 64, 7, 0, 411)
REST = 100
TYPES = {
    "bfloat16": ({}, "cute_wgmma"),
    "float16": ({}, "cute_wgmma"),
    "float8_e4m3fn": ({}, "cute_wgmma"),
    "int8": ({}, "cute_wgmma"),
    "float32": ({"precision": "tf32"}, "cute_wgmma"),
}
ON_CUDA_CORES = ("bfloat16", "float16", "float32", "float64")


def drawn(shape, dtype, seed):
    """Return small integers, NaN where the type has it in nothing: that is for the caller."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-3, 4, shape, device="cuda", generator=generator).to(dtype)


def laid(x, layout):
    return x if layout == "n" else x.transpose(-1, -2).contiguous().transpose(-1, -2)


def poisoned(x, where):
    """Put NaN where no group is."""
    if x.is_floating_point():
        x.view(torch.uint8 if x.itemsize == 1 else x.dtype)[where] = (
            0x7F if x.itemsize == 1 else float("nan")
        )


class Product:
    """A form with sizes of groups, in memory with guards."""

    def __init__(
        self, form, dtype, layout, sizes=SIZES, other=(264, 200), seed=0, kind_of_ends="int32"
    ):
        self.form, self.sizes = form, list(sizes)
        count, total = len(sizes), sum(sizes) + REST
        first, second = other
        kind = getattr(torch, dtype)
        shape_a, shape_b, shape = {
            "m": ((total, second), (count, second, first), (total, first)),
            "n": ((count, first, second), (second, total), (first, total)),
            "k": ((first, total), (total, second), (count, first, second)),
            "rows": ((count, max(sizes), second), (count, second, first),
                     (count, max(sizes), first)),
        }[form]  # fmt: skip
        self.a = laid(drawn(shape_a, kind, seed), layout[0])
        self.b = laid(drawn(shape_b, kind, seed + 1), layout[1])
        ends = sizes if form == "rows" else np.cumsum(sizes)
        self.ends = torch.tensor(
            np.asarray(ends), dtype=getattr(torch, kind_of_ends), device="cuda"
        )
        end = sum(sizes)
        if form == "m":
            poisoned(self.a, slice(end, None))
        elif form == "n":
            poisoned(self.b, (slice(None), slice(end, None)))
        elif form == "k":
            poisoned(self.a, (slice(None), slice(end, None)))
            poisoned(self.b, slice(end, None))
        else:
            for g, size in enumerate(sizes):
                poisoned(self.a, (g, slice(size, None)))
        out = torch.float32 if kind.itemsize == 1 or kind is torch.float32 else kind
        out = torch.int32 if kind is torch.int8 else out
        self.memory = torch.full((int(np.prod(shape)) + 2 * GUARD,), 77, dtype=out, device="cuda")
        self.d = self.memory[GUARD:-GUARD].view(shape)

    def call(self, **options):
        grouped = {"rows": self.ends} if self.form == "rows" else {}
        ends = () if grouped else (self.ends,)
        unigemm.grouped_matmul(self.a, self.b, *ends, out=self.d, **grouped, **options)

    def wanted(self):
        found = torch.zeros(self.d.shape, dtype=torch.float64, device="cuda")
        begin = 0
        for g, end in enumerate(self.ends.tolist()):
            own = slice(0, end) if self.form == "rows" else slice(begin, end)
            begin = end
            a, b, where = {
                "m": lambda: (self.a[own], self.b[g], own),  # noqa: B023
                "n": lambda: (self.a[g], self.b[:, own], (slice(None), own)),  # noqa: B023
                "k": lambda: (self.a[:, own], self.b[own], g),  # noqa: B023
                "rows": lambda: (self.a[g, own], self.b[g], (g, own)),  # noqa: B023
            }[self.form]()
            found[where] = a.double() @ b.double()
        return found.to(self.d.dtype)

    def check(self, **options):
        self.d.fill_(55)
        self.call(**options)
        assert torch.equal(self.d, self.wanted())
        assert (self.memory[:GUARD] == 77).all()
        assert (self.memory[-GUARD:] == 77).all()


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", ["m", "n", "k", "rows"])
@pytest.mark.sample(20)
def test_groups_on_hopper(form, dtype, layout):
    needs_hopper()
    options, backend = TYPES[dtype]
    Product(form, dtype, layout).check(backend=backend, **options)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("dtype", ON_CUDA_CORES)
@pytest.mark.parametrize("form", ["m", "n", "k", "rows"])
@pytest.mark.sample(16)
def test_groups_on_cuda_cores(form, dtype, layout):
    Product(form, dtype, layout, other=(133, 71)).check(backend="cute_simt")


#: What cutile takes: groups do not divide lines of operands, and 8 bits are K-major on Hopper.
BY_CUTILE = [
    *[("m", "bfloat16", layout) for layout in ("nn", "nt")],
    *[("n", "bfloat16", layout) for layout in ("nt", "tt")],
    ("k", "bfloat16", "tn"),
    *[("rows", "bfloat16", layout) for layout in ("nn", "nt")],
    ("m", "float16", "nt"),
    ("k", "float16", "tn"),
    *[(form, "float32", "nt") for form in ("m", "n", "rows")],
    ("k", "float32", "tn"),
    *[(form, "float8_e4m3fn", "nt") for form in ("m", "n", "rows")],
    *[(form, "int8", "nt") for form in ("m", "n", "rows")],
]


@pytest.mark.parametrize(("form", "dtype", "layout"), BY_CUTILE)
@pytest.mark.sample(12)
def test_groups_in_cutile(form, dtype, layout):
    options, _ = TYPES[dtype]
    Product(form, dtype, layout, other=(272, 208)).check(backend="cutile", **options)


@pytest.mark.parametrize("form", ["m", "k"])
def test_offsets_of_64_bits_in_cutile(form):
    Product(form, "bfloat16", LAYOUTS[form], kind_of_ends="int64").check(backend="cutile")


BACKENDS = ("cute_wgmma", "cute_simt", "cutile")
LAYOUTS = {"m": "nt", "n": "nt", "k": "tn", "rows": "nt"}  # that all of them take


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", LAYOUTS)
def test_nan_of_a_group_stays_in_it(form, backend):
    if backend == "cute_wgmma":
        needs_hopper()
    sizes = (130, 0, 1, 70)
    product = Product(form, "bfloat16", LAYOUTS[form], sizes=sizes, other=(136, 72))
    ill = slice(130, 131)
    {
        "m": lambda: product.a[ill],
        "n": lambda: product.b[:, ill],
        "k": lambda: product.a[:, ill],
        "rows": lambda: product.a[2, :1],
    }[form]().fill_(float("nan"))
    product.call(backend=backend)
    wanted = product.wanted()
    assert torch.equal(product.d.isnan(), wanted.isnan())
    assert wanted.isnan().any()
    assert torch.equal(product.d.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("backend", ["auto", "cutile"])
@pytest.mark.parametrize("form", ["m", "k"])
def test_a_graph_is_replayed_with_other_offsets(form, backend):
    product = Product(form, "bfloat16", "nn" if backend == "auto" else LAYOUTS[form])
    product.a.nan_to_num_()
    product.b.nan_to_num_()
    product.check(backend=backend)
    graph, total = torch.cuda.CUDAGraph(), sum(SIZES) + REST
    with torch.cuda.graph(graph):
        product.call(backend=backend)
    rng = np.random.default_rng(3)
    for _ in range(1000):
        ends = np.sort(rng.integers(0, total + 1, len(SIZES)))
        product.ends.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        assert torch.equal(product.d, product.wanted())


@pytest.mark.parametrize("backend", ["auto", "cutile"])
def test_offsets_that_are_none_leave_the_guards(backend):
    for form in LAYOUTS:
        product = Product(form, "bfloat16", "nn" if backend == "auto" else LAYOUTS[form])
        product.ends.copy_(
            torch.tensor([5, 3, 2**31 - 1, -7, -(2**31), 800, 70, 2000], dtype=torch.int32)
        )
        product.call(backend=backend)
        torch.cuda.synchronize()
        assert (product.memory[:GUARD] == 77).all()
        assert (product.memory[-GUARD:] == 77).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["m", "n", "k", "rows"])
def test_small_groups_for_the_sanitizer(form, backend):
    """A small set that `compute-sanitizer` runs in reasonable time (see bench/README.md)."""
    if backend == "cute_wgmma":
        needs_hopper()
    ways = [("nn", (72, 136)), ("tt", (37, 43))]
    if backend == "cutile":
        ways = [(LAYOUTS[form], (72, 136)), (LAYOUTS[form], (200, 24))]
    for layout, other in ways:
        product = Product(form, "bfloat16", layout, sizes=(33, 0, 1, 0, 70, 0), other=other)
        product.check(backend=backend)
        amax = torch.zeros(1, device="cuda")
        product.call(backend=backend, activation="relu", bias=3.0, amax_out=amax)
        inside = product.d if form == "k" else product.d[product.d != 0]
        assert amax.item() == inside.double().max()
