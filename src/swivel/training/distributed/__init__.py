"""Training on several processes or machines: a ring of ranks (torch.distributed) and parameter servers (Ray)."""
