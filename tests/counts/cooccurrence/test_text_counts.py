"""Text to counts, against plain Python: all tokenizers, units and windows, with characters that texts stumble over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import swivel
from count_strategies import configs, count_by_definition, read_counts
from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig, CountConfig
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary
from swivel.errors import CountsError, VocabularyError

WORDS = ["a", "b", "B", "İ", "ß", "é", "e\u0301", "don't", "x-y", "n_m", "1", "mr", "\u4e2d"]
MARKS = [" ", " ", "\t", "\n", "\r", "\r\n", "\n\n", "\r\r", "\0", "\ufeff", "\u00ad", "\u2028", "\x85", "\x0b"]
MARKS += ["\ud800", "\udfff", ".", ". ", "! ", "。", '"', "'", "-", "_", "\u200d"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS + MARKS), max_size=25).map("".join), min_size=1, max_size=3)
CORPORA = st.builds(
    CorpusConfig,
    tokenizer=st.sampled_from(["words", "whitespace"]),
    unit=st.sampled_from(["line", "sentence", "document"]),
    lowercase=st.booleans(),
    keep_underscores=st.booleans(),
    errors=st.just("replace"),
)


def list_units(texts: list[str], config: CorpusConfig) -> list[list[str]]:
    """Return the tokens of every unit; lone surrogates separate tokens, as NUL does."""
    clean = ["".join("\0" if "\ud800" <= char <= "\udfff" else char for char in text) for text in texts]
    return [unit for text in clean for unit in split_units(text, config)]


@pytest.mark.filterwarnings("ignore:nearly every:swivel.errors.SwivelWarning")  # Random texts may be so.
@pytest.mark.oracle
@settings(max_examples=settings().max_examples // 2)
@given(TEXTS, CORPORA, configs(), st.sampled_from(["drop", "gap"]), st.integers(1, 2), st.booleans())
@example(["a b\rb a\r\na"], CorpusConfig(errors="replace"), CountConfig(window=2), "drop", 1, True)
def test_counts_of_texts_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    corpus: CorpusConfig,
    window: CountConfig,
    oov: str,
    min_count: int,
    in_files: bool,
) -> None:
    source: Any = iter(texts)
    if in_files:
        folder = tmp_path_factory.mktemp("texts")
        source = [folder / f"{number}.txt" for number in range(len(texts))]
        for file, text in zip(source, texts, strict=True):
            Path(file).write_bytes(text.encode("utf-8", "surrogatepass"))
        texts = [text.removeprefix("\ufeff") for text in texts]  # a byte order mark

    units = list_units(texts, corpus)
    frequencies = Counter(token for unit in units for token in unit)
    frequent = sorted((-count, token) for token, count in frequencies.items() if count >= min_count)
    vocabulary = Vocabulary([token for _, token in frequent], [-count for count, _ in frequent])

    ids: list[int] = []
    for unit in units:
        ids += [vocabulary.ids.get(token, int(GAP)) for token in unit if oov == "gap" or token in vocabulary]
        ids.append(int(BREAK))
    expected = count_by_definition(ids, vocabulary, window)

    given_settings = {name: getattr(window, name) for name in ("left", "right", "columns", "near", "weight")}
    given_settings |= {name: getattr(corpus, name) for name in ("tokenizer", "unit", "lowercase", "errors")}
    given_settings |= {"keep_underscores": corpus.keep_underscores, "oov": oov, "min_count": min_count}
    if not expected or all(len(unit) == 1 for unit in units):
        with pytest.raises((CountsError, VocabularyError)):
            swivel.count(source, threads=2, **given_settings)
        return

    matrix = swivel.count(source, threads=2, **given_settings)
    assert matrix.rows == vocabulary
    assert read_counts(matrix) == expected
