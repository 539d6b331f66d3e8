"""Many machines: counting and training on Ray, rotation over the processes of torch.distributed.

Receives what one machine would do (a count, a run), hands on the same result. Nothing here is loaded, Ray least of
all, until somebody asks for it.
"""
