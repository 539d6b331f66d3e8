"""Threads, memory, progress, signals and other resources of a run."""
