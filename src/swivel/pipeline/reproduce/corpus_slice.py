"""Write the first tokens of a corpus, in whole lines, to a file for a quick experiment.

All methods then read the same text, and each may split it into sentences in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from swivel.config import CorpusConfig
from swivel.corpus import digest_sources, encode_corpus, fingerprint_sources, split_units, to_facts
from swivel.corpus.streams import cut_stream, describe_bad_byte, open_streams
from swivel.pipeline.reproduce.stages import StageJob
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.storage import create_folder, scratch_folder
from swivel.storage.result_folder import is_done

STAGE, TEXT = "corpus", "text.txt"
PIECE_BYTES = 1 << 20


def slice_job(texts: list[Path], out: Path, tokens: int, config: CorpusConfig) -> StageJob:
    """Return the job that writes the lines with the first `tokens` tokens, including the whole last line, to `out`."""
    settings = {"corpus": {"tokens": tokens, "tokenizer": config.tokenizer}}
    digests = digest_sources(texts, known=out)
    provenance = {"config": settings, "inputs": fingerprint_sources(texts, config, digests)}
    facts = to_facts(digests)
    return StageJob(out, provenance, partial(_write_slice, texts, out, tokens, config, provenance, facts))


def _write_slice(
    texts: list[Path],
    out: Path,
    max_tokens: int,
    config: CorpusConfig,
    provenance: dict[str, Any],
    facts: dict[str, Any],
    *,
    options: RunOptions,
) -> None:
    """Write the slice unless it exists; a new file would count as another text for the later stages."""
    if is_done(out, STAGE, provenance, options):
        return

    kept: list[bytes] = []
    tokens = 0
    with create_folder(out, STAGE, overwrite=options.overwrite) as folder, scratch_folder(out) as scratch:
        with track(options.progress, "taking the first tokens", max_tokens, "tokens") as task:
            for text, count in _count_tokens(texts, config, max_tokens, scratch):
                kept.append(text.encode("utf-8"))
                tokens += count
                task.advance(count)
                if tokens >= max_tokens:
                    break

        data = b"".join(kept)
        folder.write_bytes(TEXT, data)
        folder.finish(**provenance, facts={**facts, "tokens": tokens, "bytes": len(data)})


def _count_tokens(texts: list[Path], config: CorpusConfig, max_tokens: int, scratch: Path) -> Iterator[tuple[str, int]]:
    """Yield pieces of the text with their numbers of tokens; from where `max_tokens` are reached, single lines."""
    total = 0
    for piece in _read_pieces(texts, config):
        tokens = encode_corpus(iter([piece]), config, scratch=scratch, threads=1).token_count
        total += tokens
        if total <= max_tokens:
            yield piece, tokens
        else:
            for line in piece.splitlines(keepends=True):
                yield line, sum(map(len, split_units(line, config)))


def _read_pieces(texts: list[Path], config: CorpusConfig) -> Iterator[str]:
    """Yield the text in pieces that end with a line, unless a line is longer than a piece.

    A line end is added to a file that does not end with one.
    """
    for stream in open_streams(texts, config):
        ends_line = True
        for piece in cut_stream(stream, PIECE_BYTES):
            try:
                text = piece.data.decode("utf-8", config.errors)
            except UnicodeDecodeError as error:
                raise describe_bad_byte(piece, error.start) from error
            if text:
                ends_line = text.endswith("\n")
                yield text
        if not ends_line:
            yield "\n"
