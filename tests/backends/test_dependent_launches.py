"""What a kernel does between the end of the one before it and its first loads, read as SASS."""

from __future__ import annotations

import re
from functools import cache

import pytest
from made import made

import unigemm
from unigemm.cache.sass import disassemble

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytestmark = pytest.mark.compile

_CODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", re.M)


@cache
def kernels(backend, dtype, layout, sizes, precision="ieee"):
    """Return the instructions of the kernels of a planned product, by the kernels' names."""
    m, n, k = sizes
    a = unigemm.ArraySpec((m, k), dtype, "F" if layout[0] == "t" else "C")
    b = unigemm.ArraySpec((k, n), dtype, "F" if layout[1] == "t" else "C")
    plan = unigemm.plan(a, b, backend=backend, target="sm_90a", tuned=False, precision=precision)
    sass = disassemble(made(plan).files["kernel.cubin"])
    found = {}
    for part in re.split(r"(?=Function : )", sass)[1:]:
        name = re.match(r"Function : ([a-z_]+[a-z])_\d+", part)[1]
        found[name] = [code for code in _CODE.findall(part) if code != "NOP"]
    return found


@pytest.mark.parametrize(
    ("kernel", "most", "product"),
    [
        ("wgmma_gemm", 60, ("cute_wgmma", "bfloat16", "nt", (4096, 4096, 4096))),
        ("wgmma_gemm", 60, ("cute_wgmma", "bfloat16", "nn", (8, 4096, 4096))),
        ("repack", 12, ("cute_wgmma", "bfloat16", "nn", (1023, 1027, 1025))),
        ("repack", 12, ("cute_wgmma", "float32", "tn", (1023, 1027, 1025), "tf32")),
        ("simt_gemm", 60, ("cute_simt", "float32", "nn", (512, 512, 512))),
        ("simt_dot", 60, ("cute_simt", "float32", "nt", (8, 4096, 4096))),
        ("simt_axpy", 60, ("cute_simt", "float32", "nn", (1, 4096, 4096))),
        ("split_reduce", 60, ("cute_simt", "float32", "nt", (512, 512, 32768))),
    ],
    ids=str,
)
def test_addresses_are_worked_out_before_the_wait(kernel, most, product):
    """ptxas moves what needs no memory behind it: 190 to 370 instructions before the first load."""
    code = kernels(*product)[kernel]
    wait = next(i for i, text in enumerate(code) if "ACQBULK" in text)
    load = next(i for i, text in enumerate(code) if re.search(r"UTMALDG|LDGSTS|LDG", text))
    assert wait < load <= wait + most


@pytest.mark.parametrize(
    ("kernel", "code", "product"),
    [
        ("repack", "CCTL.E.PF2", ("cute_wgmma", "bfloat16", "nn", (1023, 1027, 1025))),
        ("wgmma_gemm", "UTMAPF", ("cute_wgmma", "bfloat16", "nt", (256, 256, 256))),
        ("simt_dot", "CCTL.E.PF2", ("cute_simt", "float32", "nt", (8, 4096, 4096))),
    ],
    ids=str,
)
def test_what_is_read_first_is_brought_into_the_l2_before_the_wait(kernel, code, product):
    found = kernels(*product)[kernel]
    wait = next(i for i, text in enumerate(found) if "ACQBULK" in text)
    assert any(code in text for text in found[:wait])
    assert not any(re.search(r"UTMALDG|LDGSTS|LDG", text) for text in found[:wait])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_parts_of_a_sum_are_loaded_together(dtype):
    """With two loads in flight at a time a sum of eight parts took 2 us more."""
    backend = "cute_wgmma" if dtype == "bfloat16" else "cute_simt"
    code = kernels(backend, dtype, "nt", (512, 512, 32768))["split_reduce"]
    steps = [m[1] for text in code if (m := re.search(r"\b(LDG|FADD|DADD)\b", text))]
    assert steps[:8] == ["LDG"] * 8
