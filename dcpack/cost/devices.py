"""What a device computes and moves in a second, and the figures of well-known ones.

Peaks, links and memory are from vendors' data sheets. Achieved fractions and latencies are assumptions: round numbers
of what tuned training reaches, the same for devices of a generation. Measure yours (`dcpack.cost.MeasuredCost`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dcpack._checks import as_real, check_int
from dcpack.errors import ArgumentError

__all__ = ["DEVICES", "Device", "get_device"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Speed of one device and of its links.

    Args:
        peak_flops: dense bf16 FLOP/s, without sparsity.
        matmul_fraction: part of the peak that the linear layers reach, above 0 and at most 1.
        attention_fraction: part of the peak that attention reaches, forward and backward together.
        intra_node_bandwidth: bytes/s, one way, to the next device of a ring inside a node.
        inter_node_bandwidth: bytes/s, one way, of each device to another node.
        latency: seconds that one message of a ring costs beside its transfer and that nothing hides.
        node_size: devices that share the fast links, or None where all do.
        memory_bytes: memory of one device.

    Raises:
        ArgumentError: a field out of range.

    Example:
        >>> get_device("h100").peak_flops
        989400000000000.0
    """

    peak_flops: float
    matmul_fraction: float
    attention_fraction: float
    intra_node_bandwidth: float
    inter_node_bandwidth: float
    latency: float
    node_size: int | None
    memory_bytes: float

    def __post_init__(self) -> None:
        for name in ("peak_flops", "intra_node_bandwidth", "inter_node_bandwidth", "memory_bytes"):
            object.__setattr__(self, name, as_real(name, getattr(self, name), positive=True))
        for name in ("matmul_fraction", "attention_fraction"):
            object.__setattr__(self, name, as_real(name, getattr(self, name), positive=True, maximum=1))
        object.__setattr__(self, "latency", as_real("latency", self.latency))
        if self.node_size is not None:
            object.__setattr__(self, "node_size", check_int("node_size", self.node_size, minimum=1))

    @property
    def matmul_flops(self) -> float:
        """FLOP/s that the linear layers reach."""
        return self.peak_flops * self.matmul_fraction

    @property
    def attention_flops(self) -> float:
        """FLOP/s that attention reaches."""
        return self.peak_flops * self.attention_fraction


# Assumptions, not measurements. Attention kernels are published at 0.6 to 0.75 of the peak forward (FlashAttention-2 on
# A100, arXiv 2307.08691; FlashAttention-3 on H100, arXiv 2407.08608) and clearly less backward; other devices get less.
_MATMUL, _ATTENTION, _ATTENTION_OTHERS = 0.6, 0.5, 0.4
# Assumption: launching a send and a receive and waiting for them.
_LATENCY = 10e-6

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        # NVIDIA H100 data sheet (2023), SXM: 1979 TFLOP/s bf16 with sparsity, half of it dense, to 4 digits; 80 GB;
        # NVLink 900 GB/s both ways, 450 one way. DGX H100 data sheet (2023): 8 GPUs, a 400 Gb/s adapter for each.
        "h100": Device(
            peak_flops=989.4e12,
            matmul_fraction=_MATMUL,
            attention_fraction=_ATTENTION,
            intra_node_bandwidth=450e9,
            inter_node_bandwidth=50e9,
            latency=_LATENCY,
            node_size=8,
            memory_bytes=80e9,
        ),
        # NVIDIA H200 data sheet (2024), SXM: as H100, with 141 GB. DGX H200 data sheet (2024): 8 GPUs, 400 Gb/s each.
        "h200": Device(
            peak_flops=989.4e12,
            matmul_fraction=_MATMUL,
            attention_fraction=_ATTENTION,
            intra_node_bandwidth=450e9,
            inter_node_bandwidth=50e9,
            latency=_LATENCY,
            node_size=8,
            memory_bytes=141e9,
        ),
        # NVIDIA A100 data sheet (2021), SXM 80 GB: 312 TFLOP/s bf16 dense; NVLink 600 GB/s both ways, 300 one way.
        # DGX A100 data sheet (2021): 8 GPUs, a 200 Gb/s adapter for each.
        "a100": Device(
            peak_flops=312e12,
            matmul_fraction=_MATMUL,
            attention_fraction=_ATTENTION,
            intra_node_bandwidth=300e9,
            inter_node_bandwidth=25e9,
            latency=_LATENCY,
            node_size=8,
            memory_bytes=80e9,
        ),
        # Huawei Atlas 800T A2 white paper (2023): 8 NPUs of 376 TFLOP/s fp16 (313 TFLOP/s ones exist too), 64 GB and a
        # 200 Gb/s RoCE port each. HCCS is a full mesh of 7 links, 392 GB/s both ways together: a ring uses one link to
        # its next NPU, 28 GB/s one way. bf16 is taken to run at the speed of fp16.
        "ascend-910b": Device(
            peak_flops=376e12,
            matmul_fraction=_MATMUL,
            attention_fraction=_ATTENTION_OTHERS,
            intra_node_bandwidth=28e9,
            inter_node_bandwidth=25e9,
            latency=_LATENCY,
            node_size=8,
            memory_bytes=64e9,
        ),
        # Google Cloud documentation, "TPU v5e" (2025): 197 TFLOP/s bf16, 16 GB, ICI 400 GB/s both ways over 4 ports, so
        # 50 GB/s one way to a neighbour; pods of 256; data center network 6.4 Tb/s a pod, 3.125 GB/s a chip.
        "tpu-v5e": Device(
            peak_flops=197e12,
            matmul_fraction=_MATMUL,
            attention_fraction=_ATTENTION_OTHERS,
            intra_node_bandwidth=50e9,
            inter_node_bandwidth=3.125e9,
            latency=_LATENCY,
            node_size=256,
            memory_bytes=16e9,
        ),
        # Google Cloud documentation, "TPU v5p" (2025): 459 TFLOP/s bf16, 95 GiB, ICI 1200 GB/s both ways over 6 ports,
        # so 100 GB/s one way to a neighbour; pods of 8960; data center network 50 Gb/s a chip.
        "tpu-v5p": Device(
            peak_flops=459e12,
            matmul_fraction=_MATMUL,
            attention_fraction=_ATTENTION_OTHERS,
            intra_node_bandwidth=100e9,
            inter_node_bandwidth=6.25e9,
            latency=_LATENCY,
            node_size=8960,
            memory_bytes=95 * 2**30,
        ),
    }
)
"""Well-known devices by name. "Node" is what shares the fast links: a pod, for TPUs."""


def get_device(name: str) -> Device:
    """Return the device behind a name.

    Args:
        name: one of `DEVICES`.

    Raises:
        ArgumentError: an unknown name; lists the known ones.

    Example:
        >>> get_device("a100").node_size
        8
        >>> get_device("b9")
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: unknown device 'b9'; known are h100, h200, a100, ascend-910b, tpu-v5e, tpu-v5p
    """
    if not isinstance(name, str) or name not in DEVICES:
        raise ArgumentError(f"unknown device {name!r}; known are {', '.join(DEVICES)}")
    return DEVICES[name]
