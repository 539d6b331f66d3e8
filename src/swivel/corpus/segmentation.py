"""Words of scripts that have no spaces between them, and of tokenizers that the user passes.

A `Splitter` stands between a stream of text and the compiled tokenizer. With ICU it puts zero-width spaces between the
words of unspaced scripts, so that all other rules (units, case, hyphens) stay those of the `words` tokenizer; with a
function of the user it turns every line into a list of tokens. Both run in as many processes as there are threads,
because neither lets other threads run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import itertools
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

from swivel.config import CorpusConfig
from swivel.corpus.normalization import normalize
from swivel.corpus.sources import STDIN, Texts, files_of, is_pipe
from swivel.corpus.streams import SEPARATOR, Stream, TextPiece, cut_stream, describe_bad_byte, file_stream, find_codec
from swivel.errors import ConfigError, CorpusError, SwivelError, first_line, missing_extra
from swivel.runtime.child_process import ChildProcess, can_start_processes
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import SILENT, Progress

Tokenizer = Callable[[str], Iterable[str]]

PIECE_BYTES = 1 << 18  # jieba and Sudachi split about 1 MB a second
_SAMPLE_CHARS = 1 << 16  # of each sampled file
_SAMPLES = 4  # files
_SAMPLE_TEXTS = 20  # texts in memory

# Scripts without spaces, as the inside of a regular expression: ideographs with their iteration mark, and kana.
_KANA = "\u3041-\u3096\u309d-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SCRIPTS = {
    "Japanese": _KANA,
    "Chinese": _HAN,
    "Thai": "\u0e00-\u0e7f",
    "Lao": "\u0e80-\u0eff",
    "Khmer": "\u1780-\u17ff",
    "Burmese": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
}
_UNSPACED = "".join(_SCRIPTS.values())
_RUN = re.compile(f"[{_UNSPACED}]+")
_IDEOGRAPH = re.compile(f"[{_KANA}{_HAN}]")
# A letter is, on average, in a run of 11 to 30 letters where words are not separated, and of 2 to 8 where they are.
_LONG_RUN = {True: 5, False: 10}  # of ideographs and kana, and of letters

_BOUNDARY = "\ufdd0"  # a noncharacter
_INNER_BOUNDARY = re.compile(f"(?<=[{_UNSPACED}]){_BOUNDARY}(?=[{_UNSPACED}])")
ZERO_WIDTH_SPACE = "\u200b"

_SENTENCE_END = re.compile(r"(?<=[。！？])|(?<=[.!?…])\s+")
_TOKEN_END, _TEXT_END = b"\xfe", b"\xff"


def find_language(text: str) -> str | None:
    """Return the language of a text that is mostly in a script without spaces, and has none; else None.

    >>> find_language("私は猫が好きです。"), find_language("私 は 猫 が 好き です"), find_language("I like cats")
    ('Japanese', None, None)
    """
    runs = _RUN.findall(text)
    total = sum(map(len, runs))
    letters = sum(map(str.isalpha, text))
    if not total or 2 * total < letters:
        return None

    sizes = {name: len(re.findall(f"[{chars}]", text)) for name, chars in _SCRIPTS.items()}
    mean_run = sum(len(run) ** 2 for run in runs) / total
    if mean_run <= _LONG_RUN[_IDEOGRAPH.search(text) is not None]:
        return None
    if sizes["Japanese"] * 20 > sizes["Chinese"] > 0:  # Japanese is written with both.
        return "Japanese"
    return max(sizes, key=lambda name: sizes[name])


def refuse_unspaced(text: str, hint: str) -> None:
    """Raise ConfigError if a text has no spaces between words, and those of the training were split at spaces."""
    language = find_language(text)
    if language is not None:
        raise ConfigError(
            f"the texts are {language}, which has no spaces between words, so that they cannot be split as the text "
            f"of the training was: {hint}",
            argument="tokenizer",
        )


def has_icu() -> bool:
    """Return whether the library for ICU is installed."""
    return importlib.util.find_spec("icu4py") is not None


def insert_spaces(text: str) -> str:
    """Return a text with a zero-width space between two words of an unspaced script, as ICU finds them."""
    if not _RUN.search(text):
        return text
    if not has_icu():
        raise missing_extra("words by ICU (tokenizer='icu')", "icu4py", "icu")
    from icu4py.breakers import WordBreaker

    # The language does not matter: a dictionary is chosen by the script, and that of ideographs has both languages.
    joined = _BOUNDARY.join(WordBreaker(text.replace(_BOUNDARY, " "), "en"))
    return _INNER_BOUNDARY.sub(ZERO_WIDTH_SPACE, joined).replace(_BOUNDARY, "")


def is_function_name(tokenizer: object) -> bool:
    """Return whether a tokenizer is the name of a function, such as jieba:lcut."""
    return isinstance(tokenizer, str) and ":" in tokenizer


@lru_cache(maxsize=4)
def load_function(name: str) -> Tokenizer:
    """Return the function that a name such as `jieba:lcut` means; the current folder is searched last."""
    module_name, _, path = name.partition(":")
    here = os.getcwd()  # noqa: PTH109 (a string of sys.path)
    if here not in sys.path:
        sys.path.append(here)
    try:
        function: Any = importlib.import_module(module_name)
        for part in path.split("."):
            function = getattr(function, part)
    except Exception as error:  # A module may raise any error.
        raise ConfigError(f"tokenizer {name!r}: {first_line(error)}", argument="tokenizer") from error
    if not callable(function):
        raise ConfigError(f"tokenizer {name!r}: {path} is not a function", argument="tokenizer")
    return function  # type: ignore[no-any-return]


def split_text(text: str, tokenizer: Tokenizer | str) -> list[str]:
    """Return the tokens of a text by a tokenizer of the user; white space is no token."""
    function = load_function(tokenizer) if isinstance(tokenizer, str) else tokenizer
    try:
        result = function(text)
        tokens = [] if isinstance(result, str | bytes) else list(result)
    except SwivelError:
        raise
    except Exception as error:
        raise CorpusError(
            f"the tokenizer failed with {type(error).__name__}: {first_line(error)}; it must return the words of a "
            f"text as strings; the text: {text[:60]!r}"
        ) from error
    if isinstance(result, str | bytes) or not all(isinstance(token, str) for token in tokens):
        wrong = type(result if isinstance(result, str | bytes) else tokens[0]).__name__
        raise CorpusError(
            f"the tokenizer must return the words of a text as a list of strings, not {wrong}; the text: {text[:60]!r}"
        )
    return [token for token in tokens if token.strip()]


def split_texts(texts: Iterable[Any], tokenizer: Tokenizer | str) -> Iterator[Any]:
    """Yield texts as lists of tokens, or with zero-width spaces by ICU; lists and missing texts are unchanged."""
    for text in texts:
        if not isinstance(text, str):
            yield text
        elif tokenizer == "icu":
            yield insert_spaces(text)
        else:
            yield split_text(text, tokenizer)


def resolve_tokenizer(texts: Texts, config: CorpusConfig, progress: Progress = SILENT) -> tuple[Texts, CorpusConfig]:
    """Return the texts, and the configuration with the tokenizer that suits them if it is "auto".

    An iterator may lose its first items; the returned texts are complete.
    """
    if config.tokenizer == "icu" and not has_icu():
        raise missing_extra("words by ICU (tokenizer='icu')", "icu4py", "icu")
    if isinstance(config.tokenizer, str) and is_function_name(config.tokenizer):
        load_function(config.tokenizer)  # Report a misspelled name before text is read.
    if config.tokenizer != "auto":
        return texts, config

    texts, sample = sample_texts(texts, config)
    language = find_language(sample)
    tokenizer = "words"
    if language is not None and has_icu():
        tokenizer = "icu"
        progress.message(f"the text is mostly {language}: ICU splits it into words (tokenizer='icu')")
    elif language is not None:
        progress.message(
            f"warning: the text is mostly {language}, which has no spaces between words, so that whole clauses are "
            "words: pip install 'swivel-embeddings[icu]', or pass tokenizer='module:function', or lists of tokens"
        )
    return texts, dataclasses.replace(config, tokenizer=tokenizer)


def sample_texts(texts: Texts, config: CorpusConfig) -> tuple[Texts, str]:
    """Return the texts, and the start of some of them; nothing of lists of tokens and of what is read only once."""
    files = files_of(texts) if not isinstance(texts, Iterator) else None
    if files is None:
        items: Any = texts
        if hasattr(items, "to_pylist"):  # a column of pyarrow
            items = items[:_SAMPLE_TEXTS].to_pylist()
        try:
            head = list(itertools.islice(items, _SAMPLE_TEXTS))
        except TypeError:  # no texts at all, which is reported when they are read
            return texts, ""
        if isinstance(texts, Iterator):
            texts = itertools.chain(head, texts)
        return texts, "\n".join(item[:_SAMPLE_CHARS] for item in head if isinstance(item, str))

    samples = []
    for file in files[:: -(-len(files) // _SAMPLES) or 1]:
        # Waiting for a pipe or for standard input would keep the folder unlocked until text comes.
        if file != STDIN and not is_pipe(file):
            blocks = file_stream(file, find_codec(config.encoding), config).blocks()
            samples.append(next(blocks, b"")[:_SAMPLE_CHARS])
    return texts, "\n".join(sample.decode("utf-8", "ignore") for sample in samples)


class Splitter:
    """Splits streams of text as a configuration says, in several processes if the text is long."""

    def __init__(self, config: CorpusConfig, threads: int) -> None:
        self._config = dataclasses.replace(config, phrases="none")
        self._threads = threads
        self._idle: SimpleQueue[ChildProcess] | None = None
        self._exits = contextlib.ExitStack()

    @staticmethod
    def is_needed(config: CorpusConfig) -> bool:
        """Return whether text is split before the compiled tokenizer reads it."""
        return config.tokenizer == "icu" or callable(config.tokenizer) or is_function_name(config.tokenizer)

    def __enter__(self) -> Splitter:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def split(self, stream: Stream) -> Stream:
        """Return a stream of the same text, with spaces between its words or as lists of tokens."""
        is_text = self._config.tokenizer == "icu"

        def read(result: Stream) -> Iterator[bytes]:
            pieces = cut_stream(stream, PIECE_BYTES)
            head = list(itertools.islice(pieces, 2))
            is_long = not head[-1].is_last
            threads = self._start_processes() if is_long else 1
            for data in map_in_order(self._split_piece, itertools.chain(head, pieces), threads=threads):
                result.read_bytes = stream.read_bytes
                if data:
                    yield data

        return Stream(
            stream.name, read, stream.size, has_marks=stream.has_marks or not is_text, is_tokenized=not is_text
        )

    def _start_processes(self) -> int:
        """Start the processes if there are none, and return how many pieces can be split at a time."""
        if self._threads < 2 or not can_start_processes() or not _can_send(self._config.tokenizer):
            return 1
        if self._idle is None:
            self._idle = SimpleQueue()
            for _ in range(self._threads):
                self._idle.put(self._exits.enter_context(ChildProcess()))
        return self._threads

    def _split_piece(self, piece: TextPiece) -> bytes:
        texts = _decode(piece, self._config)
        if self._idle is None:
            return split_piece(texts, piece.is_continued, self._config)
        process = self._idle.get()
        try:
            return process.call(split_piece, texts, piece.is_continued, self._config).wait(SILENT)
        finally:
            self._idle.put(process)


def _can_send(tokenizer: object) -> bool:
    """Return whether another process can load a tokenizer."""
    module = getattr(tokenizer, "__module__", None) or type(tokenizer).__module__
    try:
        pickle.dumps(tokenizer)
    except Exception:  # Each library has its own.
        return False
    return module != "__main__"


def _decode(piece: TextPiece, config: CorpusConfig) -> list[str]:
    """Return the texts of a piece; the last one may continue in the next piece."""
    texts = []
    start = 0
    for data in piece.data.split(_TEXT_END) if piece.stream.has_marks else [piece.data]:
        try:
            texts.append(data.decode("utf-8", "strict" if config.errors == "strict" else SEPARATOR))
        except UnicodeDecodeError as error:
            raise describe_bad_byte(piece, start + error.start) from error
        start += len(data) + 1
    return texts


def split_piece(texts: list[str], is_continued: bool, config: CorpusConfig) -> bytes:
    """Return the texts of a piece with spaces between their words, or as lists of tokens, in UTF-8."""
    texts = [normalize(text, config.normalization) for text in texts]
    if config.tokenizer == "icu":
        return _TEXT_END.join(insert_spaces(text).encode() for text in texts)

    parts: list[bytes] = []
    for number, text in enumerate(texts):
        parts += _split_lines(text, is_continued and number == 0, config)
        parts.append(_TEXT_END)
    return b"".join(parts[:-1])


def _split_lines(text: str, is_continued: bool, config: CorpusConfig) -> Iterator[bytes]:
    """Yield the tokens of a text and the ends of its units."""
    for number, line in enumerate(text.splitlines(keepends=True)):
        body = "".join(line.splitlines())
        if config.unit == "document":
            if not body.strip() and not (is_continued and number == 0):
                yield _TEXT_END
            sentences = [body]
        else:
            sentences = _SENTENCE_END.split(body) if config.unit == "sentence" else [body]

        for place, sentence in enumerate(sentences):
            if place:
                yield _TEXT_END
            if sentence.strip():
                for token in split_text(sentence, config.tokenizer):
                    yield token.encode("utf-8", "replace")
                    yield _TOKEN_END
        if line != body and config.unit != "document":
            yield _TEXT_END
