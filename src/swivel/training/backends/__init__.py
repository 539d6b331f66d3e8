"""Backends compute training steps.

`reference` is NumPy in float64, `cpu` uses torch products and numba kernels, `triton` runs on NVIDIA GPUs, and `torch`
runs on every other device. `docs/architecture.md` explains how to add one.
"""

from swivel.training.backends.base import Backend, BackendSettings, ParameterBlock, Step
from swivel.training.backends.select import choose_backend, choose_dtype, create_backend, describe_accelerator
from swivel.training.zero_sampling import ZeroSampling

__all__ = [
    "Backend",
    "BackendSettings",
    "ParameterBlock",
    "Step",
    "ZeroSampling",
    "choose_backend",
    "choose_dtype",
    "create_backend",
    "describe_accelerator",
]
