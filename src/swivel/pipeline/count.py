"""`swivel count`: text to a matrix of co-occurrence counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.config import CorpusConfig, CountConfig, VocabularyConfig, result_settings
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, FolderExists
from swivel.pipeline.result_folder import folder_or_temporary, is_done
from swivel.pipeline.settings import given, make_options, split_settings
from swivel.pipeline.token_ids import list_tokens, number_tokens, warn_of_paths
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress
from swivel.runtime.resources import find_rank, parse_bytes
from swivel.storage import MANIFEST, fingerprint, hold_folder, scratch_folder

if TYPE_CHECKING:
    from typing import Unpack

    from swivel.config import CountSettings
    from swivel.corpus import Texts
    from swivel.counts import Matrix


def count(
    texts: Texts,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | None = None,
    window: int | None = None,
    min_count: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
    options: RunOptions | None = None,
    **settings: Unpack[CountSettings],
) -> Matrix:
    """Count co-occurrences in text and return the matrix, written to the folder `out` or to a temporary one.

    Parameters
    ----------
    texts
        A path (of a file, a folder, a glob, or ``-``), several Paths, an iterable of texts, or one of lists of tokens.
    recipe
        Named settings: default, fast, paper or glove.
    vocabulary
        A list of tokens; by default the most frequent ones are chosen by `min_count` and `max_size`.
    window
        How many tokens on either side co-occur with a token.
    min_count
        Leave out tokens that occur fewer times.
    device
        "auto", "cpu", "cuda", or any device as torch names it.
    threads, memory, progress
        Number of threads, bytes of memory (or a text such as "1GiB"), and a receiver of progress events.
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
    from swivel.corpus import fingerprint_sources
    from swivel.counts import open_matrix

    options = make_options(options, threads=threads, memory=memory, progress=progress)
    _check_single_process()
    corpus_config, vocabulary_config, count_config = split_settings(
        recipe,
        {**settings, **given(window=window, min_count=min_count, device=device)},
        CorpusConfig,
        VocabularyConfig,
        CountConfig,
    )
    listed = list_tokens(vocabulary)

    configs = {
        "corpus": result_settings(corpus_config),
        "vocabulary": result_settings(vocabulary_config),
        "count": result_settings(count_config),
    }
    inputs = fingerprint_sources(texts, corpus_config)
    if listed is not None:
        inputs["vocabulary"] = fingerprint(list(listed))

    with folder_or_temporary(out) as folder:
        is_repeatable = "iterable" not in inputs and "-" not in inputs
        if is_repeatable and is_done(folder.path, "matrix", {"config": configs, "inputs": inputs}, options):
            return open_matrix(folder.path)

        with hold_folder(folder.path):
            _check_unfinished(folder.path, options)
            check_libraries("counting")
            warn_of_paths(texts, options.progress)
            return folder.keep(_count(texts, folder.path, listed, (configs, count_config), inputs, options))


def _check_single_process() -> None:
    rank = find_rank()
    if rank is not None and rank[1] > 1:
        raise ConfigError("torchrun starts ranks for training only; count in one process first, then train its matrix")


def _check_unfinished(path: Path, options: RunOptions) -> None:
    """Raise FolderExists before the text is read rather than after it."""
    if (path / MANIFEST).exists() and not options.overwrite:
        raise FolderExists(
            f"{path}: finished already, and text in memory or from a pipe cannot be compared with what the folder was "
            "made from; choose another folder, train from this one, or pass --overwrite"
        )


def _count(
    texts: Texts,
    path: Path,
    listed: tuple[str, ...] | None,
    settings: tuple[Mapping[str, Mapping[str, Any]], CountConfig],
    inputs: Mapping[str, str],
    options: RunOptions,
) -> Matrix:
    from swivel.counts.cooccurrence import CountJob, check_device, choose_device, count_tokens, wake_device

    configs, count_config = settings
    if options.ray is not None:
        from swivel.counts.cooccurrence.ray import ClusterCount, count_on_ray

        return count_on_ray(ClusterCount(texts, path, configs, count_config, inputs, listed), options)

    device_memory = None if count_config.device_memory is None else parse_bytes(count_config.device_memory)
    if count_config.device not in ("auto", "cpu"):
        check_device(count_config.device)  # An error is raised now, not after the text has been read.
    wake_device(count_config.device)

    with scratch_folder(path) as scratch:
        tokens, ids = number_tokens(texts, scratch, listed, configs, options)
        job = CountJob(
            path=path,
            memory_bytes=options.memory_bytes,
            threads=options.thread_count,
            overwrite=options.overwrite,
            inputs=inputs,
            settings=configs,
            device=choose_device(count_config.device, len(ids)),
            device_memory=device_memory,
        )
        return count_tokens(ids, tokens, count_config, job, progress=options.progress)
