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

from swivel._version import __version__ as __version__

# For type checkers, which cannot read _HOMES; a name imported `as` itself is exported.
if TYPE_CHECKING:
    from swivel.corpus.vocabulary import Vocabulary as Vocabulary
    from swivel.counts import Matrix as Matrix
    from swivel.counts import MatrixBuilder as MatrixBuilder
    from swivel.counts import MatrixSpec as MatrixSpec
    from swivel.counts import open_matrix as open_matrix
    from swivel.counts.importers import import_counts as import_counts
    from swivel.errors import SwivelError as SwivelError
    from swivel.estimator import SwivelEmbedding as SwivelEmbedding
    from swivel.evaluation import evaluate as evaluate
    from swivel.evaluation import evaluate_ranking as evaluate_ranking
    from swivel.evaluation import evaluate_texts as evaluate_texts
    from swivel.explorer.maps import make_map as make_map
    from swivel.pipeline.add import add as add
    from swivel.pipeline.count import count as count
    from swivel.pipeline.count import find_phrases as find_phrases
    from swivel.pipeline.demo import open_sample as open_sample
    from swivel.pipeline.extend import extend as extend
    from swivel.pipeline.run import run as run
    from swivel.pipeline.train import train as train
    from swivel.recommender import Recommender as Recommender
    from swivel.runtime.options import RunOptions as RunOptions
    from swivel.vectors import Vectors as Vectors
    from swivel.vectors.comparison import compare as compare
    from swivel.vectors.formats import export as export
    from swivel.vectors.formats import load as load

# Loaded when first asked for, so that `import swivel` stays light.
_HOMES = {
    "Matrix": "swivel.counts",
    "MatrixBuilder": "swivel.counts",
    "MatrixSpec": "swivel.counts",
    "Recommender": "swivel.recommender",
    "RunOptions": "swivel.runtime.options",
    "SwivelEmbedding": "swivel.estimator",
    "SwivelError": "swivel.errors",
    "Vectors": "swivel.vectors",
    "Vocabulary": "swivel.corpus.vocabulary",
    "add": "swivel.pipeline.add",
    "compare": "swivel.vectors.comparison",
    "count": "swivel.pipeline.count",
    "evaluate": "swivel.evaluation",
    "evaluate_ranking": "swivel.evaluation",
    "evaluate_texts": "swivel.evaluation",
    "export": "swivel.vectors.formats",
    "extend": "swivel.pipeline.extend",
    "find_phrases": "swivel.pipeline.count",
    "import_counts": "swivel.counts.importers",
    "load": "swivel.vectors.formats",
    "make_map": "swivel.explorer.maps",
    "open_matrix": "swivel.counts",
    "open_sample": "swivel.pipeline.demo",
    "run": "swivel.pipeline.run",
    "train": "swivel.pipeline.train",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'swivel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
