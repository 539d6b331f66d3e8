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
    from swivel.drift import compare
    from swivel.errors import SwivelError
    from swivel.estimator import SwivelEmbedding
    from swivel.evaluation import evaluate
    from swivel.extending import extend
    from swivel.formats import export, load
    from swivel.importers import import_counts
    from swivel.matrix import Matrix, MatrixBuilder, MatrixSpec, open_matrix
    from swivel.means import Means
    from swivel.pipeline import add, count, run, train
    from swivel.sample import open_sample
    from swivel.vectors import Vectors
    from swivel.vocabulary import Vocabulary

# Loaded when first asked for, so that `import swivel` stays light.
_HOMES = {
    "Matrix": "swivel.matrix",
    "MatrixBuilder": "swivel.matrix",
    "MatrixSpec": "swivel.matrix",
    "Means": "swivel.means",
    "SwivelEmbedding": "swivel.estimator",
    "SwivelError": "swivel.errors",
    "Vectors": "swivel.vectors",
    "Vocabulary": "swivel.vocabulary",
    "add": "swivel.pipeline",
    "compare": "swivel.drift",
    "count": "swivel.pipeline",
    "evaluate": "swivel.evaluation",
    "export": "swivel.formats",
    "extend": "swivel.extending",
    "import_counts": "swivel.importers",
    "load": "swivel.formats",
    "open_matrix": "swivel.matrix",
    "open_sample": "swivel.sample",
    "run": "swivel.pipeline",
    "train": "swivel.pipeline",
}

__all__ = [
    "Matrix",
    "MatrixBuilder",
    "MatrixSpec",
    "Means",
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
