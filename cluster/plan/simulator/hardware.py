"""Cost models of machines that are not here: rooflines of published peak rates.

A forward is bound by reading the weights or by arithmetic, whichever takes longer; it reads the KV
of its context; and each layer costs its launches and, on several GPUs, two all-reduces:

    T = max(bytes / bandwidth, 2 · parameters · tokens / flops) + kv_bytes · context / bandwidth
        + layers · (launch + 2 · all-reduce)

Peak rates are those of the vendor's data sheets, for dense half precision. The share of them that
kernels reach (`Efficiency`) is assumed, and equal for all GPUs. So ratios between sizes and
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


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Assumed shares of the peak rates, and latencies."""

    flops: float = 0.6
    bandwidth: float = 0.8
    link: float = 0.7
    launch_s: float = 30e-6
    """Per layer, with CUDA graphs or as a good engine overlaps it; eager code takes some 200 µs."""
    all_reduce_s: float = 10e-6
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


_DEFAULT = Efficiency()


def roofline(
    model: Shape, gpu: Gpu, gpus: int = 1, efficiency: Efficiency = _DEFAULT
) -> ForwardCost:
    """The cost of a forward, tensor-parallel on several GPUs."""
    bandwidth = gpus * gpu.bandwidth * efficiency.bandwidth
    reading_s = model.weight_bytes / bandwidth
    computing_s = 2 * model.parameters / (gpus * gpu.flops * efficiency.flops)
    layer_s = efficiency.launch_s
    reduce_s = 0.0
    if gpus > 1:
        layer_s += 2 * efficiency.all_reduce_s
        sent = 2 * (gpus - 1) / gpus * _HALF * model.hidden
        reduce_s = 2 * model.layers * sent / (gpu.link * efficiency.link)
    return ForwardCost(
        alpha=model.kv_bytes / bandwidth,
        gamma=reduce_s,
        delta=reading_s + model.layers * layer_s,
        knee=max(1, int(reading_s / computing_s)),
        gamma_more=computing_s,
    )
