"""Count co-occurrences of token ids, exactly and within a memory budget, on all cores, on a GPU or on a Ray cluster.

The input is a corpus of vocabulary ids and a `CountConfig`; the result is a `swivel.counts.Matrix`.
"""

from swivel.corpus.sentinels import BREAK, GAP
from swivel.counts.cooccurrence.count import (
    CountJob,
    check_device,
    choose_device,
    count_part,
    count_tokens,
    forecast,
    make_spec,
    wake_device,
)
from swivel.counts.cooccurrence.plan import Forecast
from swivel.counts.cooccurrence.windows import WindowWeights, column_vocabulary, part_names, window_weights

__all__ = [
    "BREAK",
    "GAP",
    "CountJob",
    "Forecast",
    "WindowWeights",
    "check_device",
    "choose_device",
    "column_vocabulary",
    "count_part",
    "count_tokens",
    "forecast",
    "make_spec",
    "part_names",
    "wake_device",
    "window_weights",
]
