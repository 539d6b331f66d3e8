"""Compile the numba kernels into their cache, by counting and training a few words.

A fresh clone has no cache: without this, every process of the tests that comes first would compile them for itself, 20
seconds each. `make test` runs it beside mypy, which leaves the other core idle.
"""

from __future__ import annotations

import tempfile

import swivel

TEXT = ["the cat sat on the mat", "the dog sat on the log"] * 20


def main() -> None:
    for zeros in ("all", "sampled"):
        with tempfile.TemporaryDirectory() as folder:
            swivel.run(TEXT, folder, min_count=1, dim=4, epochs=1, zeros=zeros, backend="cpu", dtype="float32")


if __name__ == "__main__":
    main()
