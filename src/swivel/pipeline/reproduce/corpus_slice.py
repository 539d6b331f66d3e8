"""The first tokens of a corpus, as a corpus: what a quick experiment runs on.

Receives files, hands on a folder with one text of whole lines: each method then reads the same text, and may still
split it into sentences as it likes.
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
from swivel.pipeline.stages import is_done
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track
from swivel.storage import create_folder, scratch_folder

STAGE, TEXT = "corpus", "text.txt"
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SliceJob:
    """Write the lines that hold the first `tokens` tokens of `texts`, the last one whole, into the folder `out`."""

    resumes: ClassVar[bool] = False

    texts: tuple[Path, ...]
    out: Path
    tokens: int
    config: CorpusConfig

    def provenance(self) -> dict[str, Any]:
        """Return what the slice depends on."""
        config = {"corpus": {"tokens": self.tokens, "tokenizer": self.config.tokenizer}}
        return {"config": config, "inputs": fingerprint_sources(list(self.texts), self.config)}

    def run(self, options: RunOptions) -> None:
        """Write the slice, unless it is there: written again it would pass for another text."""
        if is_done(self.out, STAGE, self.provenance(), options):
            return
        with create_folder(self.out, STAGE, overwrite=options.overwrite) as folder, scratch_folder(self.out) as scratch:
            with track(options.progress, "taking the first tokens", self.tokens, "tokens") as task:
                taken = _Slice(self.tokens, self.config, scratch, task)
                taken.fill(_read_pieces(self.texts, self.config))
            folder.write_bytes(TEXT, b"".join(taken.kept))
            folder.finish(**self.provenance(), facts={"tokens": taken.tokens, "bytes": sum(map(len, taken.kept))})


def _read_pieces(texts: tuple[Path, ...], config: CorpusConfig) -> Iterator[str]:
    """Yield the text in pieces that end with a line where lines are short enough; each file ends with one, too."""
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
    """Text that is being taken until it holds enough tokens."""

    wanted: int
    config: CorpusConfig
    scratch: Path
    task: Task
    tokens: int = 0
    kept: list[bytes] = field(default_factory=list)

    def fill(self, pieces: Iterator[str]) -> None:
        for text in pieces:
            found = self._count(text)
            if self.tokens + found > self.wanted:
                self._fill_lines(text)
                return
            self._keep(text, found)
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
