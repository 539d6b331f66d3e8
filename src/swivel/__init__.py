"""Swivel: text, or any table of co-occurrence counts, in; vectors out.

>>> import swivel
>>> matrix = swivel.count(["the cat sat", "the dog sat"], min_count=1)
>>> vectors = swivel.train(matrix, dim=4)
>>> len(vectors)
4
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swivel._version import __version__

if TYPE_CHECKING:
    from swivel.corpus.vocabulary import Vocabulary
    from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix
    from swivel.counts.importers import import_counts
    from swivel.errors import SwivelError
    from swivel.estimator import SwivelEmbedding
    from swivel.evaluation import evaluate
    from swivel.pipeline.add import add
    from swivel.pipeline.count import count
    from swivel.pipeline.demo import open_sample
    from swivel.pipeline.extend import extend
    from swivel.pipeline.run import run
    from swivel.pipeline.train import train
    from swivel.runtime.options import RunOptions
    from swivel.vectors import Vectors
    from swivel.vectors.compare import compare
    from swivel.vectors.formats import export, load

# Loaded when first asked for, so that `import swivel` stays light.
_HOMES = {
    "Matrix": "swivel.counts",
    "MatrixBuilder": "swivel.counts",
    "MatrixSpec": "swivel.counts",
    "RunOptions": "swivel.runtime.options",
    "SwivelEmbedding": "swivel.estimator",
    "SwivelError": "swivel.errors",
    "Vectors": "swivel.vectors",
    "Vocabulary": "swivel.corpus.vocabulary",
    "add": "swivel.pipeline.add",
    "compare": "swivel.vectors.compare",
    "count": "swivel.pipeline.count",
    "evaluate": "swivel.evaluation",
    "export": "swivel.vectors.formats",
    "extend": "swivel.pipeline.extend",
    "import_counts": "swivel.counts.importers",
    "load": "swivel.vectors.formats",
    "open_matrix": "swivel.counts",
    "open_sample": "swivel.pipeline.demo",
    "run": "swivel.pipeline.run",
    "train": "swivel.pipeline.train",
}

__all__ = [
    "Matrix",
    "MatrixBuilder",
    "MatrixSpec",
    "RunOptions",
    "SwivelEmbedding",
    "SwivelError",
    "Vectors",
    "Vocabulary",
    "__version__",
    "add",
    "compare",
    "count",
    "evaluate",
    "export",
    "extend",
    "import_counts",
    "load",
    "open_matrix",
    "open_sample",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'swivel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
