"""Plots, documents, and the report of a run."""
