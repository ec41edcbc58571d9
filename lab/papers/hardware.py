"""The papers' models and machines; cluster/plan/simulator/hardware.py makes cost models of them."""

from cluster.plan.simulator.hardware import A100, A100_40GB, L40, LINK, V100, Gpu, Shape

__all__ = ["A100", "A100_40GB", "A800", "L20", "L40", "V100"]

# NVIDIA's data sheet of the "L20" (119.5 TFLOPS, 864 GB/s, PCIe 4.0); the A800 is an A100 with
# NVLink at 400 GB/s.
L20 = Gpu(119.5e12, 864e9, 48e9, link=32e9, host_link=32e9)
A800 = Gpu(312e12, 2039e9, 80e9, link=200e9, host_link=32e9)

# From the models' published configurations.
LLAMA_68M = Shape(68e6, 2, 768, 768)
LLAMA_160M = Shape(162e6, 12, 768, 768)
LLAMA_7B = Shape(6.74e9, 32, 4096, 4096)
LLAMA_13B = Shape(13.0e9, 40, 5120, 5120)
LLAMA_30B = Shape(32.5e9, 60, 6656, 6656)
LLAMA_31_70B = Shape(70.6e9, 80, 8192, 1024)
LLAMA_32_1B = Shape(1.24e9, 16, 2048, 512)
QWEN_25_32B = Shape(32.8e9, 64, 5120, 1024)
QWEN_25_05B = Shape(0.49e9, 24, 896, 128)
# Spin names its other SSMs by size only; their layers and widths are assumed.
LLAMA_265M = Shape(265e6, 12, 1024, 1024)
LLAMA_616M = Shape(616e6, 16, 1536, 1536)
LLAMA_1100M = Shape(1.1e9, 22, 2048, 2048)
LLAMA_1400M = Shape(1.4e9, 24, 2048, 2048)


def kv_tokens(model: Shape, gpu: Gpu, gpus: int = 1) -> int:
    """KV tokens that fit beside the weights into nine tenths of the memory."""
    return max(0, int((0.9 * gpus * gpu.memory - model.weight_bytes) / model.kv_bytes))


def swap_s_per_token(model: Shape, gpu: Gpu, gpus: int = 1) -> float:
    """The time to copy one token's KV to host memory, each GPU over its own link."""
    return model.kv_bytes / (gpus * gpu.host_link * LINK)
