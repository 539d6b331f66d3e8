"""Write the first tokens of a corpus, in whole lines, to a file for a quick experiment.

All methods then read the same text, and each may split it into sentences in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from swivel.config import CorpusConfig
from swivel.corpus import encode_corpus, fingerprint_sources, split_units
from swivel.corpus.chunks import cut_stream, describe_bad_byte
from swivel.corpus.sources import open_streams
from swivel.pipeline.result_folder import is_done
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track
from swivel.storage import create_folder, scratch_folder

STAGE, TEXT = "corpus", "text.txt"
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SliceJob:
    """Write the lines with the first `tokens` tokens of `texts`, including the whole last line, to the folder `out`."""

    resumes: ClassVar[bool] = False

    texts: tuple[Path, ...]
    out: Path
    tokens: int
    config: CorpusConfig

    def provenance(self) -> dict[str, Any]:
        """Return the settings and inputs that the slice depends on."""
        config = {"corpus": {"tokens": self.tokens, "tokenizer": self.config.tokenizer}}
        return {"config": config, "inputs": fingerprint_sources(list(self.texts), self.config)}

    def run(self, options: RunOptions) -> None:
        """Write the slice unless it exists; a new file would count as another text for the later stages."""
        if is_done(self.out, STAGE, self.provenance(), options):
            return

        with create_folder(self.out, STAGE, overwrite=options.overwrite) as folder, scratch_folder(self.out) as scratch:
            with track(options.progress, "taking the first tokens", self.tokens, "tokens") as task:
                text_slice = _Slice(self.tokens, self.config, scratch, task)
                text_slice.fill(_read_pieces(self.texts, self.config))

            text = b"".join(text_slice.kept)
            folder.write_bytes(TEXT, text)
            folder.finish(**self.provenance(), facts={"tokens": text_slice.tokens, "bytes": len(text)})


def _read_pieces(texts: tuple[Path, ...], config: CorpusConfig) -> Iterator[str]:
    """Yield the text in pieces that end with a line, unless a line is longer than a piece.

    A line end is added to a file that does not end with one.
    """
    for stream in open_streams(list(texts), config):
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


@dataclass(slots=True)
class _Slice:
    """Collects text until it has enough tokens."""

    wanted: int
    config: CorpusConfig
    scratch: Path
    task: Task
    tokens: int = 0
    kept: list[bytes] = field(default_factory=list)

    def fill(self, pieces: Iterator[str]) -> None:
        """Take whole pieces while they fit, then the lines of the last piece."""
        for text in pieces:
            tokens = self._count(text)
            if self.tokens + tokens > self.wanted:
                self._fill_lines(text)
                return

            self._keep(text, tokens)
            if self.tokens == self.wanted:
                return

    def _count(self, text: str) -> int:
        encoded = encode_corpus([text], self.config, scratch=self.scratch, threads=1)
        return encoded.token_count

    def _fill_lines(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            self._keep(line, sum(map(len, split_units(line, self.config))))
            if self.tokens >= self.wanted:
                return

    def _keep(self, text: str, tokens: int) -> None:
        self.kept.append(text.encode("utf-8"))
        self.tokens += tokens
        self.task.advance(tokens)
