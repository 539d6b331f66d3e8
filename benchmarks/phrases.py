"""Time of finding and joining phrases, beside gensim's Phrases on the same tokens.

Swivel reads the raw text; gensim is given lists of tokens in memory, and the time to make them does not count.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import cpu_seconds, keep, make_parser, parse_arguments, plain_corpus, write_corpus
from swivel.config import CorpusConfig
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.joined_corpus import JoinedCorpus
from swivel.corpus.vocabulary import BREAK

MEASURES = ("swivel.corpus.joined_corpus", "swivel.corpus.joined_corpus", "swivel.corpus.encoded_corpus")


def main() -> None:
    parser = make_parser(__doc__, "corpus", "threads")
    parser.add_argument("--passes", type=int, default=1)
    arguments = parse_arguments(parser, corpus=write_corpus, threads=1)
    config = CorpusConfig(phrases="word2vec", phrase_passes=arguments.passes)
    files = plain_corpus(arguments.corpus)

    with tempfile.TemporaryDirectory() as folder:
        join(["a b a b"] * 9, config, Path(folder), 1)  # compiles

    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.perf_counter(), cpu_seconds()
        encoded = encode_corpus(files, config, scratch=Path(folder), threads=arguments.threads)
        read_seconds = time.perf_counter() - started
        joined = JoinedCorpus(encoded, Path(folder), arguments.threads)
        tokens, ids = list(joined.tokens), np.array(joined.ids)
        before = time.perf_counter()
        joined.find(config)
        join_seconds = time.perf_counter() - before
        ours = {
            "wall_seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(cpu_seconds() - cpu, 2),
            "reading_seconds": round(read_seconds, 2),
            "joining_seconds": round(join_seconds, 2),
        }
        units = split_units(ids, tokens)
        result = split_units(np.array(joined.ids), joined.tokens)

    theirs, expected = run_gensim(units, arguments.passes)
    ratio = theirs["wall_seconds"] / ours["wall_seconds"]
    keep(
        arguments,
        {
            "tokens": int((ids != BREAK).sum()),
            "phrases": len(joined.phrases),
            "swivel": ours,
            "gensim": theirs,
            "times_as_fast": round(ratio, 1),
            "same_result": result == expected,
        },
    )


def join(texts: Any, config: CorpusConfig, scratch: Path, threads: int) -> None:
    JoinedCorpus(encode_corpus(texts, config, scratch=scratch, threads=threads), scratch, threads).find(config)


def split_units(ids: Any, tokens: list[str]) -> list[list[str]]:
    ends = [*np.flatnonzero(ids == BREAK).tolist(), len(ids)]
    units, start = [], 0
    for end in ends:
        units.append([tokens[number] for number in ids[start:end].tolist()])
        start = end + 1
    return units


def run_gensim(units: list[list[str]], passes: int) -> tuple[dict[str, float], list[list[str]]]:
    from gensim.models.phrases import Phrases

    started, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(passes):
        model = Phrases(units)
        units = [model[unit] for unit in units]
    seconds = {"wall_seconds": round(time.perf_counter() - started, 2), "cpu_seconds": round(cpu_seconds() - cpu, 2)}
    return seconds, units


if __name__ == "__main__":
    main()
