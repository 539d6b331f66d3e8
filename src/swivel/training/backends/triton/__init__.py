"""The training step on NVIDIA GPUs: Triton kernels, and cuBLAS for the products from G to the gradients of the vectors.

`backend.TritonBackend` keeps the parameters and all observed cells on the device, as far as they fit, and runs the
blocks of a round in few launches.
"""
