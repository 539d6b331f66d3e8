"""The step on CUDA: Triton kernels, and cuBLAS for the two products that lead back to the vectors.

Receives parameters and all observed cells, keeps both on the device, and runs the blocks of a round in few launches.
"""

from swivel.training.backends.triton.backend import TritonBackend

__all__ = ["TritonBackend"]
