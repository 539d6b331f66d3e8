"""`swivel count` and `swivel phrases`: text to a matrix of co-occurrence counts, and the phrases of a text."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swivel.config import SCORERS, CorpusConfig, CountConfig, VocabularyConfig, stage_config
from swivel.corpus.segmentation import resolve_tokenizer
from swivel.corpus.sources import (
    Texts,
    can_compare,
    files_of,
    find_texts,
    is_on_disk,
    list_files,
    local_files,
    record_sources,
    text_size,
)
from swivel.corpus.vocabulary import Vocabulary, check_units, choose_vocabulary, describe_text, read_tokens
from swivel.counts import Matrix, open_matrix
from swivel.counts.cooccurrence import count_tokens, prepare_device
from swivel.errors import ConfigError
from swivel.pipeline.settings import TextCounting, resolve_counting
from swivel.runtime.child_process import PROGRESS, ChildProcess, can_start_processes
from swivel.runtime.numbers import plural
from swivel.runtime.options import RunOptions, check_names, make_options
from swivel.runtime.progress import Progress
from swivel.runtime.resources import (
    ResourceEstimate,
    check_libraries,
    find_rank,
    format_bytes,
    may_use_cuda,
)
from swivel.storage.lock import scratch_folder
from swivel.storage.manifest import fingerprint, open_array
from swivel.storage.output_folder import check_output, has_result, open_work_folder

if TYPE_CHECKING:
    from swivel.corpus.encoded_corpus import EncodedCorpus
    from swivel.corpus.joined_corpus import JoinedCorpus, Phrase

Result = TypeVar("Result")

# A token of English text is about 6 bytes long; it takes 4 bytes of scratch space when read and 4 as an id.
SCRATCH_PER_BYTE = 1.4
IDS = "ids.npy"  # the text as ids of its vocabulary, in a scratch folder


def count(
    texts: Texts,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | Path | None = None,
    window: int | None = None,
    min_count: int | None = None,
    device: str | None = None,
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
    options
        Resources and reporting; its fields, such as `threads` and `overwrite`, can be passed as keywords instead.
    settings
        Other fields of CorpusConfig, VocabularyConfig and CountConfig.

    Examples
    --------
    >>> matrix = count(["a b a", "b a"], min_count=1, columns="symmetric", window=2)
    >>> matrix.count("a", "b")
    3.0
    """
    options = make_options(options, settings)
    check_names(settings, CorpusConfig, VocabularyConfig, CountConfig)
    settings |= {"window": window, "min_count": min_count, "device": device}
    counting = resolve_counting(recipe, settings)
    word_list = list_tokens(vocabulary)
    return count_texts(find_texts(texts, out), out, counting, word_list, options, vocabulary_file=file_of(vocabulary))


def count_texts(
    texts: Texts,
    out: str | Path | None,
    counting: TextCounting,
    word_list: tuple[str, ...] | None,
    options: RunOptions,
    *,
    vocabulary_file: Path | None,
) -> Matrix:
    """Count texts with resolved settings; `word_list` are the words of the vocabulary if a list of them was given."""
    rank = find_rank()
    if rank is not None and rank[1] > 1:
        raise ConfigError("torchrun starts ranks for training only; count in one process first, then train its matrix")

    phrases = list_phrases(counting.corpus, options)
    files_read = [*local_files(texts), vocabulary_file, counting.corpus.phrase_file]
    output = check_output(out, files_read, options)
    if isinstance(texts, Iterator):
        prepare_device(counting.count)  # An unusable device is reported before an item is taken.
    texts, corpus = resolve_tokenizer(texts, counting.corpus, options.progress)
    counting = dataclasses.replace(counting, corpus=corpus)
    record: dict[str, dict[str, Any]] = {"config": counting.to_dict(), "inputs": {}}  # of the manifest
    if output is not None:
        # Digests come first: a finished folder of the same text is returned without reading it again.
        inputs, facts = record_sources(texts, counting.corpus.without_path(), output, options)
        if word_list is not None:
            inputs["vocabulary"] = fingerprint(list(word_list))
        if phrases is not None:
            inputs["phrases"] = fingerprint(list(phrases))
        record |= {"inputs": inputs, "facts": facts}
        if has_result(output, "matrix", record, options, is_comparable=can_compare(inputs)):
            return open_matrix(output)

    # From here on the folder is locked: a second writer fails now and not after it has read its text.
    with open_work_folder(output) as path:
        check_libraries("counting")
        matrix = _count(texts, path, counting, word_list, phrases, record, options)
        matrix.trust()  # This process has just written it.
        return matrix if output is not None else matrix.to_memory()


def file_of(vocabulary: object) -> Path | None:
    """Return the file of a vocabulary; None if it is not in a file."""
    return vocabulary if isinstance(vocabulary, Path) else None


def list_tokens(vocabulary: Iterable[str] | Path | None) -> tuple[str, ...] | None:
    """Return the given vocabulary, or that in a file, as a tuple of tokens, or None."""
    if isinstance(vocabulary, Path):
        return read_tokens(vocabulary)
    if isinstance(vocabulary, str):
        raise ConfigError(f"vocabulary must be a list of tokens or the Path of a file, got the text {vocabulary!r}")
    tokens = None if vocabulary is None else tuple(vocabulary)
    wrong = next((token for token in tokens or () if not isinstance(token, str)), None)
    if wrong is not None:
        raise ConfigError(f"vocabulary must be a list of tokens, got {wrong!r} among them", argument="vocabulary")
    return tokens


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
    word_list: tuple[str, ...] | None,
    phrases: tuple[str, ...] | None,
    record: Mapping[str, Mapping[str, Any]],
    options: RunOptions,
) -> Matrix:
    if options.ray is not None:
        from swivel.counts.cooccurrence.cluster_count import count_on_ray

        stages = (counting.corpus.without_path(), counting.vocabulary, counting.count)
        return count_on_ray(texts, path, stages, word_list, phrases, record, options)

    # Reading and counting share one budget, which is measured once.
    options = options.fix_memory()
    with scratch_folder(path) as scratch:
        if files_of(texts) is not None:
            _forecast_reading(texts, path, options.progress)
        vocabulary = read_beside_device(number_text, texts, counting, word_list, phrases, scratch, options=options)
        return count_tokens(open_array(scratch / IDS), vocabulary, counting.count, path, options, record)


def read_beside_device(
    read: Callable[..., Result], texts: Texts, counting: TextCounting, *arguments: Any, options: RunOptions
) -> Result:
    """Return `read(texts, counting, *arguments, ...)`, in another process if this one prepares a GPU for counting.

    Reading would wait for the import of torch most of the time.
    """
    # The GPU is prepared in the background while text is read; `check` raises what failed there.
    check = prepare_device(counting.count)

    reading: dict[str, Any] = {"threads": options.thread_count, "memory_bytes": options.memory_bytes}
    files = files_of(texts) if may_use_cuda(counting.count.device) and can_start_processes() else None
    if files is None or not all(map(is_on_disk, files)) or callable(counting.corpus.tokenizer):
        return read(texts, counting, *arguments, progress=options.progress, check=check, **reading)

    with ChildProcess() as process:
        call = process.call(read, files, counting, *arguments, progress=PROGRESS, **reading)
        return call.wait(options.progress, check)


def number_text(
    texts: Texts,
    counting: TextCounting,
    word_list: tuple[str, ...] | None,
    phrases: tuple[str, ...] | None,
    scratch: Path,
    *,
    progress: Progress,
    **reading: Any,
) -> Vocabulary:
    """Read texts, choose and return their vocabulary, and write them as its ids to a file of the folder `scratch`.

    `word_list` are the words of the vocabulary and `phrases` those that are joined, if lists of them were given.
    """
    encoded = encode_texts(texts, counting.corpus, phrases, scratch, progress=progress, **reading)
    absent = getattr(encoded, "absent", ())  # phrases of the list that were joined nowhere
    if phrases is not None and absent:
        progress.message(f"joined nowhere: {plural(len(absent), 'listed phrase')}, such as {absent[0]!r}")

    # Types were counted while the text was read, so that it is not read again.
    vocabulary = choose_vocabulary(encoded.types, counting.vocabulary, word_list, counting.corpus)
    unit = counting.corpus.unit
    check_units(encoded.token_count, encoded.unit_count, unit)
    progress.message(describe_text(encoded.token_count, encoded.unit_count, unit, vocabulary))
    keep_gaps = counting.count.oov == "gap"
    encoded.write_ids(vocabulary, keep_gaps=keep_gaps, path=scratch / IDS, threads=reading["threads"])
    return vocabulary


def _forecast_reading(texts: Texts, path: Path, progress: Progress) -> None:
    """Print how much text there is and how much disk it takes while it is read."""
    files = list_files(texts)  # type: ignore[arg-type]
    size = sum(text_size(file) for file in files)
    needed = int(size * SCRATCH_PER_BYTE)
    progress.message(
        f"reading {plural(len(files), 'file')}: {format_bytes(size)} of text, "
        f"{format_bytes(needed)} of disk while reading"
    )
    ResourceEstimate("reading", needed, 0, needed, "take less text").check(path)


def encode_texts(
    texts: Texts,
    config: CorpusConfig,
    phrases: Iterable[str] | None,
    scratch: Path,
    *,
    progress: Progress,
    **reading: Any,
) -> EncodedCorpus | JoinedCorpus:
    """Read texts that will be counted, and return them as token numbers, in files of the folder `scratch`.

    Phrases are joined as configured; only those of the list `phrases`, if it is given. `reading` are further arguments
    of `encode_corpus`.
    """
    from swivel.corpus.encoded_corpus import encode_corpus

    encoded = encode_corpus(texts, config, scratch=scratch, progress=progress, **reading)
    if config.phrases == "none":
        return encoded
    from swivel.corpus.joined_corpus import join_corpus

    # Phrases need the counts of all pairs, hence a second look at the encoded text.
    joined = join_corpus(encoded, config, scratch=scratch, threads=reading["threads"], phrases=phrases)
    progress.message(f"{encoded.token_count - joined.token_count:,} tokens were joined to phrases")
    return joined


def find_phrases(texts: Texts, *, options: RunOptions | None = None, **settings: Any) -> list[Phrase]:
    """Return the phrases of a text, the most frequent ones first.

    `texts` and `options` are as in `swivel.count`, `settings` are fields of CorpusConfig; `phrases` is "word2vec" by
    default, or "npmi".

    >>> text = ["in new york", "new york is big", "a new car", "to york"] * 5
    >>> [phrase.token for phrase in find_phrases(text, phrase_threshold=0.1)]
    ['new_york']
    """
    options = make_options(options, settings).fix_memory()
    check_names(settings, CorpusConfig)
    config = stage_config(CorpusConfig, **{"phrases": "word2vec", **settings})
    if config.phrases not in SCORERS:
        raise ConfigError(f"phrases must be one of {', '.join(SCORERS)}, got {config.phrases!r}")

    reading = {"threads": options.thread_count, "memory_bytes": options.memory_bytes}
    with scratch_folder(Path(tempfile.gettempdir())) as scratch:
        texts, config = resolve_tokenizer(find_texts(texts), config, options.progress)
        joined: Any = encode_texts(texts, config, None, scratch, progress=options.progress, **reading)
    # The highest scores are those of rare names, which few people look for.
    return sorted(joined.phrases, key=lambda phrase: (-phrase.occurrences, -phrase.score, phrase.token))
