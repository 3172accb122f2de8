"""Known devices by name, with what planning needs to know of them where no driver tells it.

Sources:

- Shared memory and lanes of an SM: CUDA C++ Programming Guide, technical specifications and
  arithmetic throughput by compute capability.
- SMs, level-2 cache, boost clocks and bandwidth: the maker's data sheets and architecture papers.
- Tensor cores: the dense TFLOP/s of the same papers for 16-bit inputs and float32 accumulators.
  GeForce cards do half of what workstations do; those of sm_120 are listed with the full rate,
  because the coefficients of sm_120 were chosen for that.
- Jetson T5000: SMs and L2 as the driver tells them (NVIDIA's developer forum, thread 356355), clock
  and memory from the module's data sheet. Its 2070 TFLOP/s of sparse FP4 make 4096 16-bit
  multiply-adds per SM and clock. float64 lanes are assumed to be those of sm_103.
- Rubin: SMs and bandwidth as announced; all else is assumed to be as on sm_103.
- GB10: tensor cores are assumed to be those of sm_120's workstations.
- H20: 78 SMs, 60 MB of L2, 4.0 TB/s and 148 dense TFLOP/s of 16 bits as published for it, which at
  1980 MHz (the H100's clock, assumed) make 480 multiply-adds per SM and clock.
- GH200: an H100 of 132 SMs beside 96 GB of HBM3 at 4 TB/s or 144 GB of HBM3e at 4.9 TB/s (data
  sheet of the GH200 Grace Hopper Superchip); L2 and clock are assumed to be the H200's.
- GB200 and GB300: 152 SMs as the driver tells them (torch.cuda.get_device_properties, in public
  logs), 8 TB/s by the data sheets of the NVL72 racks; L2, clock and tensor cores are assumed to be
  those of B200 and B300.

`measured` is true of the cards that launches were measured on: the fitted numbers of the cost
model come from these. All estimates for other cards are assumed, and plans say so.
"""

from __future__ import annotations

from typing import NamedTuple

from ..problem.dtypes import DType

__all__ = ["ARCHITECTURES", "CARDS", "TENSOR_RATES", "Architecture", "Card"]

#: Dense rate of a type on tensor cores, over that of 16 bits; float32 as TF32, float4 in pairs, as
#: K counts them. By the data sheets of A100, H200 and B200.
TENSOR_RATES = {
    DType.FLOAT4_E2M1FN_X2: 2.0,
    DType.FLOAT8_E4M3FN: 2.0,
    DType.FLOAT8_E5M2: 2.0,
    DType.INT8: 2.0,
    DType.FLOAT16: 1.0,
    DType.BFLOAT16: 1.0,
    DType.FLOAT32: 0.5,
}


class Architecture(NamedTuple):
    """What all devices of an architecture share: shared memory per SM in KiB, and lanes."""

    smem_kib: int
    fp32_lanes: int
    fp64_lanes: int


class Card(NamedTuple):
    """A device; the level-2 cache is in MiB, the clock in MHz and the bandwidth in GB/s."""

    arch: str
    name: str
    sm_count: int
    l2_mib: int
    clock_mhz: int
    dram_gbs: int
    tensor_flops: int
    other_names: tuple[str, ...] = ()
    measured: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "sm_80": Architecture(164, 64, 32),
    "sm_86": Architecture(100, 128, 2),
    "sm_87": Architecture(164, 128, 2),
    "sm_89": Architecture(100, 128, 2),
    "sm_90a": Architecture(228, 128, 64),
    "sm_100a": Architecture(228, 128, 64),
    "sm_103a": Architecture(228, 128, 2),
    "sm_107a": Architecture(228, 128, 2),
    "sm_110a": Architecture(228, 128, 2),
    "sm_120a": Architecture(100, 128, 2),
    "sm_121a": Architecture(100, 128, 2),
}

#: The first device of each architecture stands for the architecture.
CARDS: tuple[Card, ...] = (
    Card("sm_80", "NVIDIA A100 80GB", 108, 40, 1410, 2039, 1024, ("A100", "A100-SXM4-80GB")),
    Card("sm_80", "NVIDIA A100 80GB PCIe", 108, 40, 1410, 1935, 1024, ("A100 PCIe",)),
    Card(
        "sm_80", "NVIDIA A100-SXM4-40GB", 108, 40, 1410, 1555, 1024, ("A100 40GB", "A100-PCIE-40GB")
    ),
    Card("sm_80", "NVIDIA A30", 56, 24, 1440, 933, 1024),
    Card("sm_86", "NVIDIA GeForce RTX 3090", 82, 6, 1695, 936, 256),
    Card("sm_86", "NVIDIA GeForce RTX 3090 Ti", 84, 6, 1860, 1008, 256),
    Card("sm_86", "NVIDIA GeForce RTX 3080", 68, 5, 1710, 760, 256),
    Card("sm_86", "NVIDIA GeForce RTX 3070", 46, 4, 1725, 448, 256),
    Card("sm_86", "NVIDIA RTX A6000", 84, 6, 1800, 768, 512, ("A6000",)),
    Card("sm_86", "NVIDIA A40", 84, 6, 1740, 696, 512),
    Card("sm_86", "NVIDIA A10", 72, 6, 1695, 600, 512),
    Card("sm_87", "NVIDIA Jetson AGX Orin", 16, 4, 1300, 205, 1024, ("Orin", "Jetson Orin")),
    Card("sm_89", "NVIDIA L40S", 142, 96, 2520, 864, 512),
    Card("sm_89", "NVIDIA L40", 142, 96, 2490, 864, 512),
    Card("sm_89", "NVIDIA L4", 58, 48, 2040, 300, 512),
    Card("sm_89", "NVIDIA RTX 6000 Ada Generation", 142, 96, 2505, 960, 512, ("RTX 6000 Ada",)),
    Card("sm_89", "NVIDIA GeForce RTX 4090", 128, 72, 2520, 1008, 256),
    Card("sm_89", "NVIDIA GeForce RTX 4080", 76, 64, 2505, 717, 256),
    Card("sm_89", "NVIDIA GeForce RTX 4070", 46, 36, 2475, 504, 256),
    Card("sm_90a", "NVIDIA H200", 132, 60, 1980, 4800, 2048, ("H200 SXM",), measured=True),
    Card(
        *("sm_90a", "NVIDIA H100 80GB HBM3", 132, 50, 1980, 3352, 2048),
        ("H100", "H100 SXM", "H100 SXM5", "H100 80GB"),
        measured=True,
    ),
    Card("sm_90a", "NVIDIA H100 PCIe", 114, 50, 1755, 2039, 2048),
    Card("sm_90a", "NVIDIA H20", 78, 60, 1980, 4000, 480),
    Card("sm_90a", "NVIDIA GH200 480GB", 132, 60, 1980, 4000, 2048, ("GH200", "GH200 96GB")),
    Card("sm_90a", "NVIDIA GH200 144G HBM3e", 132, 60, 1980, 4900, 2048, ("GH200 144GB",)),
    Card("sm_100a", "NVIDIA B200", 148, 126, 1965, 8000, 4096),
    Card("sm_100a", "NVIDIA GB200", 152, 126, 1965, 8000, 4096),
    Card("sm_103a", "NVIDIA B300", 148, 126, 1920, 8000, 4096),
    Card("sm_103a", "NVIDIA GB300", 152, 126, 1920, 8000, 4096),
    Card("sm_107a", "NVIDIA Rubin", 224, 126, 1920, 22000, 4096, ("Vera Rubin",)),
    Card("sm_110a", "NVIDIA Jetson T5000", 20, 32, 1575, 273, 4096, ("Thor", "Jetson Thor")),
    Card("sm_120a", "NVIDIA GeForce RTX 5090", 170, 96, 2407, 1792, 512),
    Card("sm_120a", "NVIDIA GeForce RTX 5080", 84, 64, 2617, 960, 512),
    Card("sm_120a", "NVIDIA GeForce RTX 5070 Ti", 70, 48, 2452, 896, 512),
    Card("sm_120a", "NVIDIA GeForce RTX 5070", 48, 48, 2512, 672, 512),
    Card(
        *("sm_120a", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, 128, 2617, 1792),
        *(512, ("RTX PRO 6000", "RTX PRO 6000 Blackwell")),
    ),
    Card("sm_121a", "NVIDIA GB10", 48, 24, 2418, 273, 512, ("DGX Spark",)),
)
