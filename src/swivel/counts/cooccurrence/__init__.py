"""Count co-occurrences of token ids, exactly and within a memory budget, on all cores, on a GPU or on a Ray cluster.

The input is a corpus of vocabulary ids and a `CountConfig`; the result is a `swivel.counts.Matrix`.
"""

from swivel.counts.cooccurrence.corpus_count import choose_device, column_vocabulary, count_tokens, prepare_device

__all__ = ["choose_device", "column_vocabulary", "count_tokens", "prepare_device"]
