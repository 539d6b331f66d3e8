"""What computes a step: the reference (NumPy float64), the CPU's own, CUDA's own (Triton), plain torch for the rest.

Receives arrays from the training loop, changes them in place, hands back losses. `docs/architecture.md` says how a
new backend joins.
"""

from swivel.training.backends.base import Backend, ParameterBlock, Step, StepSettings, ZeroSampling
from swivel.training.backends.select import (
    BackendConfig,
    choose_backend,
    choose_dtype,
    create_backend,
    describe_accelerator,
)

__all__ = [
    "Backend",
    "BackendConfig",
    "ParameterBlock",
    "Step",
    "StepSettings",
    "ZeroSampling",
    "choose_backend",
    "choose_dtype",
    "create_backend",
    "describe_accelerator",
]
