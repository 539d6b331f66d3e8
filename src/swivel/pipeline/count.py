"""`swivel count`: text to a matrix of co-occurrence counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swivel.config import CorpusConfig, CountConfig
from swivel.corpus.vocabulary import Vocabulary, check_units, choose_vocabulary, describe_text, read_tokens
from swivel.errors import ConfigError
from swivel.pipeline.settings import TextCounting, given, make_options, resolve_counting
from swivel.runtime.estimates import ResourceEstimate, check_libraries
from swivel.runtime.numbers import plural
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress
from swivel.runtime.resources import find_rank, format_bytes, may_use_cuda, parse_bytes
from swivel.storage import fingerprint, open_array, scratch_folder
from swivel.storage.output_folder import output_folder

if TYPE_CHECKING:
    from swivel.corpus import Texts
    from swivel.corpus.encoded_corpus import EncodedCorpus
    from swivel.corpus.joined_corpus import JoinedCorpus
    from swivel.counts import Matrix

Check = Callable[[], None]  # raises an error if preparing the device has failed
Result = TypeVar("Result")

# A token of English text is about 6 bytes long; it takes 4 bytes of scratch space when read and 4 as an id.
SCRATCH_PER_BYTE = 1.4


@dataclass(frozen=True, slots=True)
class NumberedText:
    """A text as ids of the words of its vocabulary, in a file."""

    vocabulary: Vocabulary
    ids: Path


def count(
    texts: Texts,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | Path | None = None,
    window: int | None = None,
    min_count: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Progress | bool | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Matrix:
    """Count co-occurrences in text and return the matrix, in memory or opened from the folder `out`.

    Parameters
    ----------
    texts
        A path (of a file, a folder, a glob, or ``-``), a list of paths, or texts: a list, a generator, or a column of
        pandas, polars, pyarrow or datasets. Lists of tokens are texts that are tokenized already. Missing texts (None,
        NaN) are skipped. Strings in a list that all look like paths are paths, and so are those of
        `glob.iglob`; any other iterator, such as `iter(texts)`, is texts.
    recipe
        Named settings: default, fast or paper.
    vocabulary
        A list of tokens, or the Path of a file with one per line; by default the most frequent ones are chosen by
        `min_count` and `max_size`.
    window
        How many tokens on either side co-occur with a token.
    min_count
        Leave out tokens that occur fewer times.
    device
        "auto", "cpu", "cuda", or any device as torch names it.
    threads, memory, progress
        Number of threads, bytes of memory (or a text such as "1GiB"), and a receiver of progress events;
        by default a progress bar for work that takes longer than a second, False for none.
    options
        Further run options: `RunOptions`.
    settings
        Other fields of CorpusConfig, VocabularyConfig and CountConfig.

    Examples
    --------
    >>> matrix = count(["a b a", "b a"], min_count=1, columns="symmetric", window=2)
    >>> matrix.count("a", "b")
    3.0
    """
    from swivel.corpus import find_texts

    options = make_options(options, threads=threads, memory=memory, progress=progress)
    counting = resolve_counting(recipe, {**settings, **given(window=window, min_count=min_count, device=device)})
    listed = list_tokens(vocabulary)
    return count_texts(find_texts(texts, out), out, counting, listed, options, vocabulary_file=file_of(vocabulary))


def count_texts(
    texts: Texts,
    out: str | Path | None,
    counting: TextCounting,
    listed: tuple[str, ...] | None,
    options: RunOptions,
    *,
    vocabulary_file: Path | None,
) -> Matrix:
    """Count texts with resolved settings; `listed` are the words of the vocabulary if a list of them was given."""
    from swivel.corpus import can_compare, digest_sources, fingerprint_sources, local_files, to_facts
    from swivel.counts import open_matrix

    rank = find_rank()
    if rank is not None and rank[1] > 1:
        raise ConfigError("torchrun starts ranks for training only; count in one process first, then train its matrix")

    phrases = list_phrases(counting.corpus, options)
    read = [*local_files(texts), vocabulary_file, counting.corpus.phrase_file]
    with output_folder(out, read, options) as output:
        record: dict[str, dict[str, Any]] = {"inputs": {}, "facts": {}}  # of the manifest
        if output.path is not None:
            digests = digest_sources(texts, known=output.path, threads=options.thread_count, progress=options.progress)
            inputs = fingerprint_sources(texts, counting.corpus.without_path(), digests)
            if listed is not None:
                inputs["vocabulary"] = fingerprint(list(listed))
            if phrases is not None:
                inputs["phrases"] = fingerprint(list(phrases))
            provenance = {"config": counting.to_dict(), "inputs": inputs}
            if output.has_result("matrix", provenance, is_comparable=can_compare(inputs)):
                return open_matrix(output.path)
            record = {"inputs": inputs, "facts": to_facts(digests)}

        with output.working() as path:
            check_libraries("counting")
            matrix = _count(texts, path, counting, listed, phrases, record, options)
            matrix.trust()  # This process has just written it.
            return matrix if output.path is not None else matrix.to_memory()


def file_of(vocabulary: object) -> Path | None:
    """Return the file of a vocabulary; None if it is not in a file."""
    return vocabulary if isinstance(vocabulary, Path) else None


def list_tokens(vocabulary: Iterable[str] | Path | None) -> tuple[str, ...] | None:
    """Return the given vocabulary, or that in a file, as a tuple of tokens, or None."""
    if isinstance(vocabulary, Path):
        return read_tokens(vocabulary)
    if isinstance(vocabulary, str):
        raise ConfigError(f"vocabulary must be a list of tokens or the Path of a file, got the text {vocabulary!r}")
    return None if vocabulary is None else tuple(vocabulary)


def list_phrases(config: CorpusConfig, options: RunOptions) -> tuple[str, ...] | None:
    """Return the phrases of the file that `config.phrases` names; None if it names no file."""
    if config.phrases == "none":
        return None
    if options.ray is not None and config.phrase_file is None:
        raise ConfigError(
            f"phrases={config.phrases!r}: phrases cannot be found on a cluster, only those of a list can be joined: "
            "write one with find_phrases or `swivel phrases TEXT -o FILE`, and pass the file as phrases"
        )
    from swivel.corpus.joined_corpus import read_phrases  # imports numba

    return read_phrases(config)


def _count(
    texts: Texts,
    path: Path,
    counting: TextCounting,
    listed: tuple[str, ...] | None,
    phrases: tuple[str, ...] | None,
    record: Mapping[str, Mapping[str, Any]],
    options: RunOptions,
) -> Matrix:
    if options.ray is not None:
        from swivel.counts.cooccurrence.cluster_count import count_on_ray

        stages = (counting.corpus.without_path(), counting.vocabulary, counting.count)
        record = {"config": counting.to_dict(), **record}
        return count_on_ray(texts, path, stages, listed, phrases, record, options)

    from swivel.corpus import files_of

    check = check_device(counting.count)
    options = options.fix_memory()
    with scratch_folder(path) as scratch:
        if files_of(texts) is not None:
            _forecast_reading(texts, path, options.progress)
        text = read_beside_device(number_text, texts, counting, listed, phrases, scratch, options=options, check=check)
        return count_numbered(text, counting, path, record, options)


def read_beside_device(
    read: Callable[..., Result],
    texts: Texts,
    counting: TextCounting,
    *arguments: Any,
    options: RunOptions,
    check: Check,
) -> Result:
    """Return `read(texts, counting, *arguments, ...)`, in another process if this one is preparing a GPU for counting.

    `read` is called with the threads, the memory and the progress of the options, and with `check`.
    """
    from swivel.corpus import read_in_process

    resources: dict[str, Any] = {"threads": options.thread_count, "memory_bytes": options.memory_bytes}
    if may_use_cuda(counting.count.device):
        return read_in_process(read, texts, counting, *arguments, progress=options.progress, check=check, **resources)
    return read(texts, counting, *arguments, progress=options.progress, check=check, **resources)


def number_text(
    texts: Texts,
    counting: TextCounting,
    listed: tuple[str, ...] | None,
    phrases: tuple[str, ...] | None,
    scratch: Path,
    *,
    threads: int,
    memory_bytes: int,
    progress: Progress,
    check: Check | None = None,
) -> NumberedText:
    """Read texts, choose their vocabulary, and write them as its ids to a file of the folder `scratch`.

    `listed` are the words of the vocabulary and `phrases` those that are joined, if lists of them were given.
    """
    encoded = encode_texts(
        texts,
        counting.corpus,
        phrases,
        scratch,
        threads=threads,
        memory_bytes=memory_bytes,
        progress=progress,
        check=check,
    )
    if phrases is not None:
        _name_absent_phrases(encoded, progress)

    vocabulary = choose_vocabulary(encoded.types, counting.vocabulary, listed, lowercase=counting.corpus.lowercase)
    unit = counting.corpus.unit
    check_units(encoded.token_count, encoded.unit_count, unit)
    progress.message(describe_text(encoded.token_count, encoded.unit_count, unit, vocabulary))
    return write_numbered(encoded, vocabulary, counting.count, scratch, threads)


def _forecast_reading(texts: Texts, path: Path, progress: Progress) -> None:
    """Print how much text there is and how much disk it takes while it is read."""
    from swivel.corpus import list_files, text_size

    files = list_files(texts)  # type: ignore[arg-type]
    size = sum(text_size(file) for file in files)
    needed = int(size * SCRATCH_PER_BYTE)
    progress.message(
        f"reading {plural(len(files), 'file')}: {format_bytes(size)} of text, "
        f"{format_bytes(needed)} of disk while reading"
    )
    ResourceEstimate("reading", needed, 0, needed, "take less text").check(path)


def check_device(config: CountConfig) -> Check:
    """Raise errors in the settings of the device before text is read; the result is called while it is read."""
    from swivel.counts.cooccurrence import prepare_device

    if config.device_memory is not None:
        parse_bytes(config.device_memory, "device_memory")
    return prepare_device(config)


def encode_texts(
    texts: Texts,
    config: CorpusConfig,
    phrases: Iterable[str] | None,
    scratch: Path,
    *,
    threads: int,
    memory_bytes: int,
    progress: Progress,
    check: Check | None,
) -> EncodedCorpus | JoinedCorpus:
    """Read texts that will be counted, and return them as token numbers, in files of the folder `scratch`.

    Phrases are joined as configured; only those of the list `phrases`, if it is given.
    """
    from swivel.corpus.encoded_corpus import encode_corpus

    encoded = encode_corpus(
        texts, config, scratch=scratch, threads=threads, memory_bytes=memory_bytes, progress=progress, check=check
    )
    if config.phrases == "none":
        return encoded
    from swivel.corpus.joined_corpus import join_corpus

    joined = join_corpus(encoded, config, scratch=scratch, threads=threads, phrases=phrases)
    progress.message(f"{encoded.token_count - joined.token_count:,} tokens were joined to phrases")
    return joined


def write_numbered(
    encoded: EncodedCorpus | JoinedCorpus, vocabulary: Vocabulary, config: CountConfig, scratch: Path, threads: int
) -> NumberedText:
    """Write a text as ids of a vocabulary to a file of the folder `scratch`."""
    path = scratch / "ids.npy"
    encoded.write_ids(vocabulary, keep_gaps=config.oov == "gap", path=path, threads=threads)
    return NumberedText(vocabulary, path)


def _name_absent_phrases(encoded: EncodedCorpus | JoinedCorpus, progress: Progress) -> None:
    """Print how many phrases of a list were joined nowhere, and one of them."""
    from swivel.corpus.joined_corpus import JoinedCorpus

    if isinstance(encoded, JoinedCorpus) and encoded.absent:
        progress.message(
            f"joined nowhere: {plural(len(encoded.absent), 'listed phrase')}, such as {encoded.absent[0]!r}"
        )


def count_numbered(
    text: NumberedText,
    counting: TextCounting,
    path: Path,
    record: Mapping[str, Mapping[str, Any]],
    options: RunOptions,
) -> Matrix:
    """Count the words of a text and return the matrix, which is written to `path`.

    `record` are the inputs and facts that its manifest records.
    """
    from swivel.counts.cooccurrence import count_tokens

    record = {"config": counting.to_dict(), **record}
    return count_tokens(open_array(text.ids), text.vocabulary, counting.count, path, options, record)
