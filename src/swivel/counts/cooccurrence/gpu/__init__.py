"""Counting co-occurrences on a GPU."""
