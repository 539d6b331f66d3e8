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

# For type checkers, which cannot read _NAMES; a name imported `as` itself is exported.
if TYPE_CHECKING:
    from swivel.corpus.vocabulary import Vocabulary as Vocabulary
    from swivel.counts import Matrix as Matrix
    from swivel.counts import MatrixBuilder as MatrixBuilder
    from swivel.counts import MatrixSpec as MatrixSpec
    from swivel.counts import export_counts as export_counts
    from swivel.counts import open_matrix as open_matrix
    from swivel.counts.importers import import_counts as import_counts
    from swivel.counts.importers import walk_counts as walk_counts
    from swivel.errors import SwivelError as SwivelError
    from swivel.estimator import SwivelEmbedding as SwivelEmbedding
    from swivel.evaluation import evaluate as evaluate
    from swivel.evaluation import evaluate_labels as evaluate_labels
    from swivel.evaluation import evaluate_links as evaluate_links
    from swivel.evaluation import evaluate_ranking as evaluate_ranking
    from swivel.evaluation import evaluate_texts as evaluate_texts
    from swivel.evaluation import split_table as split_table
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
_NAMES = {
    "swivel.corpus.vocabulary": ("Vocabulary",),
    "swivel.counts": ("Matrix", "MatrixBuilder", "MatrixSpec", "export_counts", "open_matrix"),
    "swivel.counts.importers": ("import_counts", "walk_counts"),
    "swivel.errors": ("SwivelError",),
    "swivel.estimator": ("SwivelEmbedding",),
    "swivel.evaluation": (
        "evaluate",
        "evaluate_labels",
        "evaluate_links",
        "evaluate_ranking",
        "evaluate_texts",
        "split_table",
    ),
    "swivel.explorer.maps": ("make_map",),
    "swivel.pipeline.add": ("add",),
    "swivel.pipeline.count": ("count", "find_phrases"),
    "swivel.pipeline.demo": ("open_sample",),
    "swivel.pipeline.extend": ("extend",),
    "swivel.pipeline.run": ("run",),
    "swivel.pipeline.train": ("train",),
    "swivel.recommender": ("Recommender",),
    "swivel.runtime.options": ("RunOptions",),
    "swivel.vectors": ("Vectors",),
    "swivel.vectors.comparison": ("compare",),
    "swivel.vectors.formats": ("export", "load"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'swivel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
