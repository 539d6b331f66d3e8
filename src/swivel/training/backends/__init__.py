"""Backends compute training steps.

`reference` is NumPy in float64, `cpu` uses torch products and numba kernels, `triton` runs on NVIDIA GPUs, and `torch`
runs on every other device. `CONTRIBUTING.md` explains how to add one.
"""

from swivel.training.backends.base import Backend as Backend
from swivel.training.backends.base import BackendSettings as BackendSettings
from swivel.training.backends.base import ParameterBlock as ParameterBlock
from swivel.training.backends.base import Step as Step
from swivel.training.zero_sampling import ZeroSampling as ZeroSampling
