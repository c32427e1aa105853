# SPDX-License-Identifier: Apache-2.0
"""Machine for which layouts are predicted: a cluster, and how much of its peak speeds it reaches.

Without a calibration, the fractions are published measurements or assumptions, each with its source
and date:

    products of matrices    the best product that anyone measured on the accelerator
    other work              bytes at a fraction of the memory's bandwidth
    messages                bytes at a fraction of the link's bandwidth, after its latency
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from operator import itemgetter
from typing import Final

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.quantities import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Fraction of a peak speed by size, linear in the logarithm of the size between its points.

    Attributes:
        points: Pairs of size and fraction, sorted by size. Below the first and above the last
            point, the fraction is that of the point.
        source: Where the figures come from, with a date.
        is_measured: True if the figures were measured on the machine itself.

    Raises:
        OptionError: There are no points, sizes do not increase, or a fraction is not from 0 to 1.
    """

    points: tuple[tuple[float, float], ...]
    source: str
    is_measured: bool = False

    def __post_init__(self) -> None:
        raise_all(self._faults())

    def _faults(self) -> Iterator[OptionError]:
        sizes = [size for size, _ in self.points]
        if not sizes or any(one >= other for one, other in pairwise(sizes)) or sizes[0] <= 0:
            what, why = f"sizes of a curve are {shown(sizes)}", "they must be positive and increase"
            yield OptionError(what, why, "Sort the points by size", about="points")
        for _, fraction in self.points:
            if not 0 < fraction <= 1:
                what, why = f"a fraction of a curve is {shown(fraction)}", "peaks are not exceeded"
                hint = "Pass a number above 0 and at most 1"
                yield OptionError(what, why, hint, about="points")

    def at(self, size: float) -> float:
        """Return the fraction of the peak that is reached at this size."""
        after = bisect_left(self.points, size, key=itemgetter(0))
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (low, first), (high, last) = self.points[after - 1], self.points[after]
        return first + (last - first) * log(size / low) / log(high / low)


# Fraction of the dense 16-bit peak that the best product reaches: "Maximum Achievable Matmul FLOPS"
# in stas00/ml-engineering, compute/accelerator/README.md, read 2026-11-27: A100 SXM 267.9 of 312
# (CUDA 12.1), H100 SXM 794.5 of 989 (torch 2.7, CUDA 12.6), B200 1745 of 2250.
_MATMUL: Final = "stas00/ml-engineering b9e29720, Maximum Achievable Matmul FLOPS, read 2026-11-27"
_BEST: Final = {"A100": 0.859, "H100": 0.803, "H200": 0.803, "B200": 0.776}
_ELSEWHERE: Final = 0.8  # lies between those measured
# Shape of the curve: a product smaller than this many rows or columns leaves tiles and waves of the
# accelerator partly empty. The fractions are assumptions.
_SHAPE: Final = ((128.0, 0.25), (512.0, 0.6), (2048.0, 0.9), (8192.0, 1.0))
# Fused attention: FlashAttention-2 (Dao, 2023, arXiv 2307.08691) reaches up to 230 of 312 TFLOP/s
# forward on A100 and less backward, and up to 335 of 989 TFLOP/s on H100.
_ATTENTION: Final = {"A100": 0.55, "H100": 0.34, "H200": 0.34}
_ATTENTION_ELSEWHERE: Final = 0.4


def measured_layers() -> Curve:
    """Return the efficiency for a model whose layers were measured on the machine itself."""
    source = "included in the measured seconds of the layers"
    return Curve(points=((1.0, 1.0),), source=source, is_measured=True)


def published_products(device: str) -> Curve:
    """Return the published efficiency of products of matrices on a device.

    Args:
        device: Name of the device, such as "NVIDIA A100".
    """
    known = next((best for name, best in _BEST.items() if name in device), None)
    best = _ELSEWHERE if known is None else known
    source = _MATMUL if known is not None else "assumed, as no measurement of this device is known"
    points = tuple((size, best * fraction) for size, fraction in _SHAPE)
    return Curve(points=points, source=f"{source}; smaller products are assumed to be slower")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Cluster with the fractions of its peak speeds that programs reach.

    Attributes:
        cluster: Hosts, ranks, links and devices. The bandwidth of `cluster.across` is what one
            rank gets while all ranks of its host send.
        products: Efficiency of products of matrices, by the smallest dimension. Default: published
            figures of the device.
        attention: Efficiency of a fused attention, as a fraction of the peak. Default: published
            figures of the device.
        memory: Fraction of the memory's bandwidth that element-wise work reaches.
        link: Efficiency of messages in collectives, by bytes.
        host_bytes_per_second: Bandwidth from a device to the memory of its host, for offload.
        overhead_seconds: Seconds of the host for each layer and pass, when the device is faster
            than the program that starts its kernels.
        spread: Relative uncertainty of computed seconds.
        overlaps: True if gathers and reductions of shards overlap with computation, which takes a
            device with streams: on CPU tensors, FSDP2 (torch 2.13) waits for each of them.
        disturbed: What disturbed the measurement of these speeds, as text; "" for nothing.

    Raises:
        OptionError: A fraction is not from 0 to 1.
    """

    cluster: Cluster
    products: Curve | None = None
    attention: float | None = None
    memory: float = 0.8
    link: Curve = field(
        default_factory=lambda: Curve(
            points=((1e4, 0.1), (1e6, 0.5), (1e8, 0.8)),
            source="assumed; NCCL's bandwidth of large messages is about 0.8 of the link's",
        )
    )
    host_bytes_per_second: float = 16e9
    overhead_seconds: float = 0.0
    spread: float = 0.25
    overlaps: bool = True
    disturbed: str = ""

    def __post_init__(self) -> None:
        faults = []
        for name in ("attention", "memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                what, why = f"{name} is {shown(value)}", "it is a fraction of the peak"
                hint = "Pass a number above 0 and at most 1"
                faults.append(OptionError(what, why, hint, about=name))
        raise_all(faults)
        if self.products is None:
            curve = published_products(self.cluster.device.name)
            object.__setattr__(self, "products", curve)

    @property
    def attention_efficiency(self) -> float:
        """Fraction of the peak that a fused attention reaches."""
        if self.attention is not None:
            return self.attention
        name = self.cluster.device.name
        known = (share for device, share in _ATTENTION.items() if device in name)
        return next(known, _ATTENTION_ELSEWHERE)

    @property
    def flops_per_second(self) -> float:
        """Peak of the device; 1 TFLOP/s if it is unknown."""
        return self.cluster.device.flops_per_second or 1e12

    @property
    def bytes_per_second(self) -> float:
        """Peak bandwidth of the device's memory; 100 GB/s if it is unknown."""
        return self.cluster.device.bytes_per_second or 1e11

    @property
    def can_offload(self) -> bool:
        """True if the device has memory apart from the host's, to which activations can move."""
        return self.cluster.device.name != "cpu"

    def product_efficiency(self, size: float) -> float:
        """Return the fraction of the peak that products with this smallest dimension reach."""
        assert self.products is not None
        return self.products.at(size)

    def assumptions(self) -> tuple[str, ...]:
        """Return one sentence for each figure that was not measured on the machine itself."""
        assert self.products is not None
        found = []
        if not self.products.is_measured:
            found.append(f"Matrix products: {self.products.source}.")
        if not self.link.is_measured:
            of_gpus = self.cluster.device.name != "cpu"
            source = self.link.source if of_gpus else "assumed; calibrate measures them in a host"
            found.append(f"Messages: {source}.")
        if self.disturbed:
            found.append(f"Ranges are wider, because of the {self.disturbed}.")
        device = self.cluster.device
        if device.flops_per_second is None and not self.products.is_measured:
            found.append(
                "The device's speed is not known; times are those of 1 TFLOP/s. sagemaker-dist"
                " calibrate and --measure measure it."
            )
        elif device.bytes_per_second is None:
            found.append("Memory: 100 GB/s, for updates of weights and copies.")
        return tuple(found)
