"""Vectors as data frames of pandas and polars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swivel.errors import MissingExtra

if TYPE_CHECKING:
    import pandas
    import polars

    from swivel.vectors.vectors import Vectors


def to_pandas(vectors: Vectors) -> pandas.DataFrame:
    """Return a pandas DataFrame with one row per word, the words as its index."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("to_pandas needs pandas: pip install pandas") from error

    return pandas.DataFrame(np.array(vectors), index=pandas.Index(vectors.vocabulary.tokens, name="word"))


def to_polars(vectors: Vectors) -> polars.DataFrame:
    """Return a polars DataFrame with the columns `word`, `count` (if known) and `vector`."""
    try:
        import polars
    except ImportError as error:
        raise MissingExtra("to_polars needs polars: pip install polars") from error

    counts = vectors.vocabulary.counts
    columns = {"count": counts} if counts.any() else {}
    return polars.DataFrame({"word": vectors.vocabulary.tokens, **columns, "vector": np.array(vectors)})
