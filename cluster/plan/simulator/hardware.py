"""Cost models of machines that are not here: rooflines of published peak rates.

A forward is bound by reading the weights or by arithmetic, whichever takes longer; it reads the KV
of its context; and each layer costs its launches and, on several GPUs, two all-reduces:

    T = max(bytes / bandwidth, 2 · parameters · tokens / flops) + kv_bytes · context / bandwidth
        + layers · (launch + 2 · all-reduce)

Peak rates are those of the vendor's data sheets, for dense half precision. The share of them that
kernels reach is assumed, and equal for all GPUs. So ratios between sizes and
machines can be trusted, milliseconds only roughly.
"""

from dataclasses import dataclass

from policies.cost import ForwardCost

_HALF = 2
"""Bytes of a number in half precision."""


@dataclass(frozen=True, slots=True)
class Gpu:
    flops: float
    """Dense half precision with tensor cores, per second."""
    bandwidth: float
    """Memory bandwidth in bytes per second."""
    memory: float
    """Bytes."""
    link: float
    """Between GPUs, bytes per second in one direction."""
    host_link: float
    """To host memory, likewise, for swapping."""


# NVIDIA's data sheets: "V100" (SXM2: 125 TFLOPS, 900 GB/s, NVLink 300 GB/s both ways), "L40"
# (181 TFLOPS, 864 GB/s, PCIe 4.0), "A100 80GB SXM" (312 TFLOPS, 2039 GB/s, NVLink 600 GB/s).
V100 = Gpu(125e12, 900e9, 32e9, link=150e9, host_link=16e9)
L40 = Gpu(181e12, 864e9, 48e9, link=32e9, host_link=32e9)
A100 = Gpu(312e12, 2039e9, 80e9, link=300e9, host_link=32e9)
A100_40GB = Gpu(312e12, 1555e9, 40e9, link=300e9, host_link=32e9)


FLOPS, BANDWIDTH, LINK = 0.6, 0.8, 0.7
"""Assumed shares of the peak rates."""
_LAUNCH_S = 30e-6
"""Per layer, with CUDA graphs or as a good engine overlaps it; eager code takes some 200 µs."""
_ALL_REDUCE_S = 10e-6
"""Latency of one all-reduce."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a forward of a dense decoder depends on."""

    parameters: float
    layers: int
    hidden: int
    kv_width: int
    """KV heads · head size."""
    bytes_per_weight: float = _HALF

    @property
    def weight_bytes(self) -> float:
        return self.bytes_per_weight * self.parameters

    @property
    def kv_bytes(self) -> float:
        """Per token."""
        return 2 * _HALF * self.layers * self.kv_width


def roofline(model: Shape, gpu: Gpu, gpus: int = 1) -> ForwardCost:
    """The cost of a forward, tensor-parallel on several GPUs."""
    bandwidth = gpus * gpu.bandwidth * BANDWIDTH
    reading_s = model.weight_bytes / bandwidth
    computing_s = 2 * model.parameters / (gpus * gpu.flops * FLOPS)
    layer_s = _LAUNCH_S
    reduce_s = 0.0
    if gpus > 1:
        layer_s += 2 * _ALL_REDUCE_S
        sent = 2 * (gpus - 1) / gpus * _HALF * model.hidden
        reduce_s = 2 * model.layers * sent / (gpu.link * LINK)
    return ForwardCost(
        alpha=model.kv_bytes / bandwidth,
        gamma=reduce_s,
        delta=reading_s + model.layers * layer_s,
        knee=max(1, int(reading_s / computing_s)),
        gamma_more=computing_s,
    )
