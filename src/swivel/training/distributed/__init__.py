"""Training on several processes or machines: a ring of ranks (torch.distributed) and parameter servers (Ray).

Both compute what one machine would compute. Ray and torch.distributed are imported only when they are used.
"""
