"""Text to vectors in one call; what is finished already is not done again.

The faces (Python API, command line) call these functions. Each stage writes a folder; a folder whose manifest says
that it was made from the same inputs with the same settings is opened instead of made again.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swivel.config import (
    STAGES,
    CorpusConfig,
    CountConfig,
    TrainConfig,
    VectorsConfig,
    VocabularyConfig,
    result_settings,
    stage_config,
)
from swivel.errors import ConfigError, FolderExists, StorageError
from swivel.interrupts import stop_on_signals
from swivel.means import Means
from swivel.progress import Progress
from swivel.resources import format_bytes, parse_bytes
from swivel.storage import MANIFEST, create_folder, fingerprint, read_manifest, remove_tree, scratch_folder
from swivel.vocabulary import Vocabulary, choose_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from swivel.corpus import Texts
    from swivel.matrix import Matrix
    from swivel.training import Trained
    from swivel.vectors import Vectors

Kept = TypeVar("Kept")

# English text has a token in about 6 bytes; a token takes 4 bytes of scratch when read and 4 as an id.
SCRATCH_PER_BYTE = 1.4


def split_settings(recipe: str, settings: Mapping[str, Any], *stages: type[Any]) -> list[Any]:
    """Return the configuration of each stage from one flat set of settings."""
    names = {stage: {field.name for field in dataclasses.fields(stage)} for stage in stages}
    for setting in settings:
        if not any(setting in known for known in names.values()):
            if setting in {field.name for field in dataclasses.fields(Means)}:
                raise ConfigError(f"{setting} is given as means=Means({setting}=...): it does not change the result")
            all_names = sorted(set().union(*names.values()))
            raise ConfigError(f"{setting!r} is not a setting here; known are {', '.join(all_names)}")
    return [
        stage_config(stage, recipe, **{name: value for name, value in settings.items() if name in names[stage]})
        for stage in stages
    ]


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of a result."""

    path: Path
    is_temporary: bool

    def keep(self, result: Kept) -> Kept:
        """Return a result that lives in the folder; a temporary folder goes when the result does."""
        if self.is_temporary:
            weakref.finalize(result, remove_tree, self.path)
        return result


@contextmanager
def folder_or_temporary(out: str | Path | None) -> Iterator[Home]:
    """Yield the folder to write, or a temporary one; a temporary one is gone if the block fails."""
    if out is not None:
        yield Home(Path(out), is_temporary=False)
        return
    path = Path(tempfile.mkdtemp(prefix="swivel-"))
    try:
        yield Home(path, is_temporary=True)
    except BaseException:
        remove_tree(path)
        raise


def is_done(path: Path, stage: str, made_from: Mapping[str, Any], means: Means) -> bool:
    """Return whether a folder was made from exactly this; raise where it was made from something else."""
    if means.overwrite or not (path / MANIFEST).exists():
        return False
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise FolderExists(f"{path}: holds {manifest.stage} already; choose another folder or pass --overwrite")
    if {"config": manifest.config, "inputs": manifest.inputs} == made_from:
        means.progress.say(f"{path}: finished already, nothing to do")
        return True
    differing = [
        f"{stage}.{name}"
        for stage, values in made_from["config"].items()
        for name, value in values.items()
        if value != manifest.config.get(stage, {}).get(name)
    ]
    what = f"with other settings ({', '.join(differing)})" if differing else "from other inputs"
    raise FolderExists(f"{path}: finished already {what}; choose another folder or pass --overwrite")


def count(
    texts: Texts,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | None = None,
    means: Means | None = None,
    **settings: Any,
) -> Matrix:
    """Count co-occurrences in text and return the matrix, kept in the folder `out` or in a temporary one.

    Parameters
    ----------
    texts
        A path (also of a folder, a glob, or ``-``), several Paths, an iterable of texts, or one of lists of tokens.
    vocabulary
        One's own list of tokens; by default the commonest ones are chosen by `min_count` and `max_size`.
    settings
        Fields of CorpusConfig, VocabularyConfig and CountConfig.

    Examples
    --------
    >>> matrix = count(["a b a", "b a"], min_count=1, columns="symmetric", window=2)
    >>> matrix.count("a", "b")
    3.0
    """
    from swivel.corpus import fingerprint_sources
    from swivel.matrix import open_matrix

    means = means or Means()
    corpus_config, vocabulary_config, count_config = split_settings(
        recipe, settings, CorpusConfig, VocabularyConfig, CountConfig
    )
    listed = _list_tokens(vocabulary)
    configs = {
        "corpus": result_settings(corpus_config),
        "vocabulary": result_settings(vocabulary_config),
        "count": result_settings(count_config),
    }
    inputs = fingerprint_sources(texts, corpus_config)
    if listed is not None:
        inputs["vocabulary"] = fingerprint(list(listed))
    with folder_or_temporary(out) as home:
        is_repeatable = "iterable" not in inputs and "-" not in inputs
        if is_repeatable and is_done(home.path, "matrix", {"config": configs, "inputs": inputs}, means):
            return open_matrix(home.path)
        _refuse_finished(home.path, means)
        _warn_of_paths(texts, means.progress)
        return home.keep(_count(texts, home.path, listed, (configs, count_config), inputs, means))


def _list_tokens(vocabulary: Vocabulary | Iterable[str] | None) -> tuple[str, ...] | None:
    if isinstance(vocabulary, str):
        raise ConfigError(f"vocabulary must be a list of tokens, got the text {vocabulary!r}")
    return None if vocabulary is None else tuple(vocabulary)


def _refuse_finished(path: Path, means: Means) -> None:
    """Say at once, not after minutes of reading, that a folder is finished already."""
    if (path / MANIFEST).exists() and not means.overwrite:
        raise FolderExists(
            f"{path}: finished already, and text that is in memory or comes from a pipe cannot be compared with what "
            "it was made from; choose another folder, train from this one, or pass --overwrite"
        )


def _warn_of_paths(texts: Texts, progress: Progress) -> None:
    """Say that strings in a list are texts, where each of them is the path of a file."""
    if not isinstance(texts, (list, tuple)) or not texts:
        return
    if all(isinstance(text, str) and os.path.isfile(text) for text in texts):  # noqa: PTH113 (any text, however long)
        progress.say(f"{texts[0]!r} is a file, but strings in a list are taken as texts; pass Paths to read the files")


def _count(
    texts: Texts,
    path: Path,
    listed: tuple[str, ...] | None,
    settings: tuple[Mapping[str, Mapping[str, Any]], CountConfig],
    inputs: Mapping[str, str],
    means: Means,
) -> Matrix:
    from swivel.counting import CountJob, check_device, choose_device, count_tokens, wake_device

    configs, count_config = settings
    if means.ray is not None:
        from swivel.cluster.counting import ClusterCount, count_on_ray

        return count_on_ray(ClusterCount(texts, path, configs, count_config, inputs, listed), means)
    device_memory = None if count_config.device_memory is None else parse_bytes(count_config.device_memory)
    if count_config.device not in ("auto", "cpu"):
        check_device(count_config.device)  # now, not after the text has been read
    wake_device(count_config.device)
    with scratch_folder(path) as scratch:
        vocabulary, ids = _number_tokens(texts, scratch, listed, configs, means)
        job = CountJob(
            path=path,
            memory_bytes=means.memory_bytes,
            threads=means.thread_count,
            overwrite=means.overwrite,
            inputs=inputs,
            settings=configs,
            device=choose_device(count_config.device, len(ids)),
            device_memory=device_memory,
        )
        return count_tokens(ids, vocabulary, count_config, job, progress=means.progress)


def _number_tokens(
    texts: Texts,
    scratch: Path,
    listed: tuple[str, ...] | None,
    configs: Mapping[str, Mapping[str, Any]],
    means: Means,
) -> tuple[Vocabulary, NDArray[np.uint32]]:
    """Read the texts; return the vocabulary and the corpus as its ids, mapped from the scratch folder."""
    from swivel.corpus import encode_corpus

    config = CorpusConfig(**configs["corpus"])
    _forecast_reading(texts, scratch, means.progress)
    encoded = encode_corpus(texts, config, scratch=scratch, threads=means.thread_count, progress=means.progress)
    vocabulary = choose_vocabulary(
        encoded.counts, VocabularyConfig(**configs["vocabulary"]), listed, lowercase=config.lowercase
    )
    means.progress.say(
        f"{encoded.token_count:,} tokens in {encoded.unit_count:,} {config.unit}s; vocabulary of {len(vocabulary):,}"
    )
    keep_gaps = configs["count"]["oov"] == "gap"
    ids = encoded.write_ids(vocabulary, keep_gaps=keep_gaps, path=scratch / "ids.npy", threads=means.thread_count)
    return vocabulary, ids


def _forecast_reading(texts: Texts, scratch: Path, progress: Progress) -> None:
    """Say how much there is to read and what it takes on disk for the time being, where sizes can be known."""
    from swivel.corpus import fingerprint_sources, list_files, text_size

    if "iterable" in fingerprint_sources(texts, CorpusConfig()):
        return
    files = list_files(texts)  # type: ignore[arg-type]
    size = sum(text_size(file) for file in files)
    needed = int(size * SCRATCH_PER_BYTE)
    progress.say(
        f"reading {len(files):,} files: {format_bytes(size)} of text, {format_bytes(needed)} of disk meanwhile"
    )
    free = shutil.disk_usage(scratch).free
    if needed * 0.7 > free:
        raise StorageError(
            f"{scratch.parent}: reading needs about {format_bytes(needed)} of disk, {format_bytes(free)} are free; "
            "choose another disk"
        )


def train(
    matrix: Matrix | str | Path,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    means: Means | None = None,
    **settings: Any,
) -> Vectors:
    """Train vectors for a matrix and return them, kept in the folder `out` where one is given.

    A run that was killed goes on from its last checkpoint when it is called again with the same arguments; Ctrl-C
    saves one first.

    Parameters
    ----------
    matrix
        A matrix, or the folder of one.
    settings
        Fields of TrainConfig and VectorsConfig.
    """
    from swivel import vectors
    from swivel.matrix import open_matrix

    means = means or Means()
    matrix = open_matrix(matrix) if isinstance(matrix, (str, Path)) else matrix
    train_config, vectors_config = _training_settings(matrix, recipe, settings)
    configs = {"train": result_settings(train_config), "vectors": result_settings(vectors_config)}
    inputs = {"matrix": matrix.fingerprint}
    with folder_or_temporary(out) as home:
        if is_done(home.path, "vectors", {"config": configs, "inputs": inputs}, means):
            return vectors.load(home.path)
        return home.keep(_train(matrix, home.path, train_config, vectors_config, means))


def _training_settings(matrix: Matrix, recipe: str, settings: Mapping[str, Any]) -> tuple[TrainConfig, VectorsConfig]:
    train_config, vectors_config = split_settings(recipe, settings, TrainConfig, VectorsConfig)
    if not matrix.columns_per_row and vectors_config.combine != "rows":
        if settings.get("combine") is not None:
            raise ConfigError(
                f"combine must be rows for a matrix whose columns are not its rows' words, got {settings['combine']!r}"
            )
        vectors_config = dataclasses.replace(vectors_config, combine="rows")
    return train_config, vectors_config


def _train(
    matrix: Matrix, path: Path, train_config: TrainConfig, vectors_config: VectorsConfig, means: Means
) -> Vectors:
    from swivel import vectors
    from swivel.checkpoint import remove_checkpoints
    from swivel.cluster.choosing import choose_workers
    from swivel.training import train_matrix

    matrix.verify()
    with create_folder(path, "vectors", overwrite=means.overwrite) as folder:
        trained = train_matrix(
            matrix,
            train_config,
            folder=path,
            threads=means.thread_count,
            progress=means.progress,
            workers=choose_workers(means),
        )
        with stop_on_signals() as should_stop:  # A few seconds: what was trained is written before anyone leaves.
            result = _make_vectors(matrix, trained, train_config, vectors_config)
            facts = {**vectors.write_vectors(folder, result), **_training_facts(trained)}
            configs = {"train": result_settings(train_config), "vectors": result_settings(vectors_config)}
            folder.finish(config=configs, inputs={"matrix": matrix.fingerprint}, facts=facts)
            remove_checkpoints(path)
    should_stop.raise_if_set()
    return vectors.load(path)


def _make_vectors(matrix: Matrix, trained: Trained, train_config: TrainConfig, config: VectorsConfig) -> Vectors:
    from swivel import vectors

    parts = matrix.columns_per_row
    columns = vectors.Side(matrix.columns, trained.columns, matrix.column_sums)
    has_scores = train_config.objective == "swivel"  # GloVe's w . c is no PMI: its columns live in the sum alone.
    return vectors.Vectors(
        vectors.Side(matrix.rows, trained.rows, matrix.row_sums),
        columns if has_scores else None,
        vectors=vectors.combine_vectors(trained.rows, trained.columns, parts, config),
        shift=train_config.shift,
        columns_per_row=parts if has_scores else 0,
    )


def _training_facts(trained: Trained) -> dict[str, Any]:
    return {
        "plan": asdict(trained.plan),
        "losses": [
            {"observed": loss.mean_observed, "unobserved": loss.mean_unobserved, "mean": loss.mean}
            for loss in trained.history
        ],
        "training_seconds": round(trained.seconds, 3),
    }


def run(
    texts: Texts,
    out: str | Path,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | None = None,
    means: Means | None = None,
    **settings: Any,
) -> Vectors:
    """Go from text to vectors: `out/matrix`, then `out/vectors`; finished stages are not done again.

    Parameters
    ----------
    settings
        Fields of every stage's configuration.
    """
    split_settings(recipe, settings, *STAGES.values())
    to_count = _settings_of(settings, CorpusConfig, VocabularyConfig, CountConfig)
    to_train = _settings_of(settings, TrainConfig, VectorsConfig)
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path}: not a folder")
    matrix = count(texts, path / "matrix", recipe=recipe, vocabulary=vocabulary, means=means, **to_count)
    return train(matrix, path / "vectors", recipe=recipe, means=means, **to_train)


def _settings_of(settings: Mapping[str, Any], *stages: type[Any]) -> dict[str, Any]:
    """Return the settings that stages know; the device is one of several."""
    names = {field.name for stage in stages for field in dataclasses.fields(stage)}
    return {name: value for name, value in settings.items() if name in names}
