"""Text to vectors in one call; what is finished already is not done again.

The faces (Python API, command line) call these functions. Each stage writes a folder; a folder whose manifest says
that it was made from the same inputs with the same settings is opened instead of made again.
"""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, FolderExists, StorageError
from swivel.pipeline.token_ids import list_tokens, number_tokens, warn_of_paths
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Stopwatch
from swivel.runtime.resources import find_rank, parse_bytes
from swivel.runtime.signals import defer_signals
from swivel.storage import MANIFEST, fingerprint, hold_folder, read_manifest, remove_tree, scratch_folder, sweep_folder

if TYPE_CHECKING:
    from swivel.corpus import Texts
    from swivel.counts import Matrix
    from swivel.vectors import Vectors

Kept = TypeVar("Kept")


def split_settings(recipe: str, settings: Mapping[str, Any], *stages: type[Any]) -> list[Any]:
    """Return the configuration of each stage from one flat set of settings."""
    names = {stage: {field.name for field in dataclasses.fields(stage)} for stage in stages}
    for setting in settings:
        if not any(setting in known for known in names.values()):
            if setting in {field.name for field in dataclasses.fields(RunOptions)}:
                raise ConfigError(f"{setting} is given as options=Means({setting}=...): it does not change the result")
            all_names = sorted(set().union(*names.values()))
            raise ConfigError(f"{setting!r} is not a setting here; known are {', '.join(all_names)}")
    return [
        stage_config(stage, recipe, **{name: value for name, value in settings.items() if name in names[stage]})
        for stage in stages
    ]


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The folder of a result."""

    path: Path
    is_temporary: bool

    def keep(self, result: Kept) -> Kept:
        """Return a result that lives in the folder; a temporary folder goes when the result does."""
        if self.is_temporary:
            weakref.finalize(result, remove_tree, self.path)
        return result


@contextmanager
def folder_or_temporary(out: str | Path | None) -> Iterator[ResultFolder]:
    """Yield the folder to write, or a temporary one; a temporary one is gone if the block fails."""
    if out is not None:
        yield ResultFolder(Path(out), is_temporary=False)
        return
    path = Path(tempfile.mkdtemp(prefix="swivel-"))
    try:
        yield ResultFolder(path, is_temporary=True)
    except BaseException:
        remove_tree(path)
        raise


def is_done(path: Path, stage: str, provenance: Mapping[str, Any], options: RunOptions) -> bool:
    """Return whether a folder was made from exactly this; raise where it was made from something else."""
    if options.overwrite or not (path / MANIFEST).exists():
        return False
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise FolderExists(f"{path}: holds {manifest.stage} already; choose another folder or pass --overwrite")
    if {"config": manifest.config, "inputs": manifest.inputs} == provenance:
        sweep_folder(path)
        options.progress.message(f"{path}: finished already, nothing to do")
        return True
    differing = [
        f"{stage}.{name}"
        for stage, values in provenance["config"].items()
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
    options: RunOptions | None = None,
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
    from swivel.counts import open_matrix

    options = options or RunOptions()
    _refuse_ranks()
    corpus_config, vocabulary_config, count_config = split_settings(
        recipe, settings, CorpusConfig, VocabularyConfig, CountConfig
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
    with folder_or_temporary(out) as home:
        is_repeatable = "iterable" not in inputs and "-" not in inputs
        if is_repeatable and is_done(home.path, "matrix", {"config": configs, "inputs": inputs}, options):
            return open_matrix(home.path)
        with hold_folder(home.path):
            _refuse_finished(home.path, options)
            check_libraries("counting")
            warn_of_paths(texts, options.progress)
            return home.keep(_count(texts, home.path, listed, (configs, count_config), inputs, options))


def _refuse_ranks() -> None:
    rank = find_rank()
    if rank is not None and rank[1] > 1:
        raise ConfigError("torchrun starts ranks for training alone; count in one process first, then train its matrix")


def _refuse_finished(path: Path, options: RunOptions) -> None:
    """Say at once, not after minutes of reading, that a folder is finished already."""
    if (path / MANIFEST).exists() and not options.overwrite:
        raise FolderExists(
            f"{path}: finished already, and text that is in memory or comes from a pipe cannot be compared with what "
            "it was made from; choose another folder, train from this one, or pass --overwrite"
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
        check_device(count_config.device)  # now, not after the text has been read
    wake_device(count_config.device)
    with scratch_folder(path) as scratch:
        vocabulary, ids = number_tokens(texts, scratch, listed, configs, options)
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
        return count_tokens(ids, vocabulary, count_config, job, progress=options.progress)


def add(*matrices: Matrix | str | Path, out: str | Path | None = None, options: RunOptions | None = None) -> Matrix:
    """Add matrices up, cells of equal labels summed, and return the sum, kept in `out` or in a temporary folder.

    Vocabularies may differ: the sum has the labels of all, by falling count. Matrices counted from parts of a text
    with the same words add up to the one that is counted from the whole, bit for bit.

    Parameters
    ----------
    matrices
        Two or more, or their folders, counted with the same window, weight and columns.

    Raises
    ------
    CountsError
        They were counted differently, or one has columns of another kind.

    Examples
    --------
    >>> settings = {"min_count": 1, "columns": "symmetric"}
    >>> total = add(count(["tea milk"], **settings), count(["milk sugar", "tea milk"], **settings))
    >>> total.count("tea", "milk"), total.rows.tokens
    (2.0, ('milk', 'tea', 'sugar'))
    """
    from swivel.counts import open_matrix
    from swivel.counts.add import SumTarget, add_matrices, shared_config

    options = options or RunOptions()
    if len(matrices) < 2:
        raise ConfigError(f"there must be two or more matrices to add, got {len(matrices)}")
    opened = [open_matrix(matrix) if isinstance(matrix, (str, Path)) else matrix for matrix in matrices]
    config = shared_config(opened)
    inputs = {f"matrix {number}": matrix.fingerprint for number, matrix in enumerate(opened, 1)}
    with folder_or_temporary(out) as home:
        if is_done(home.path, "matrix", {"config": config, "inputs": inputs}, options):
            return open_matrix(home.path)
        with hold_folder(home.path):
            for matrix in opened:
                matrix.verify()
            return home.keep(add_matrices(opened, SumTarget(home.path, config, inputs), options))


def train(
    matrix: Matrix | str | Path,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    init: Vectors | str | Path | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Train vectors for a matrix and return them, kept in the folder `out` where one is given.

    A run that was killed goes on from its last checkpoint when it is called again with the same arguments; Ctrl-C
    saves one first. With `Means(report=True)` it leaves `out/report.html`.

    Parameters
    ----------
    matrix
        A matrix, or the folder of one.
    init
        Vectors to start from, or the folder that training wrote: words that both have begin at their old rows and
        columns, new ones join, a third of the epochs will do. `dim` is theirs.
    settings
        Fields of TrainConfig and VectorsConfig.
    """
    check_libraries("training")
    with defer_signals():
        from swivel import vectors
        from swivel.counts import open_matrix
        from swivel.pipeline.train_folder import make_job, make_vectors
        from swivel.reports.run_report import leave_report
        from swivel.vectors.formats import open_vectors

    options = options or RunOptions()
    matrix = open_matrix(matrix) if isinstance(matrix, (str, Path)) else matrix
    init = open_vectors(init) if isinstance(init, (str, Path)) else init
    if init is not None and settings.get("dim") is None:
        settings["dim"] = init.rows.shape[1]
    if out is None and find_rank() is not None:
        raise ConfigError("ranks that torchrun starts need a folder that they all see: pass out")
    job = make_job(matrix, *_training_settings(matrix, recipe, settings), init)
    watch = Stopwatch(options.progress)
    with folder_or_temporary(out) as home:
        if is_done(home.path, "vectors", job.provenance(), options):
            result = vectors.load(home.path)
        else:
            result = make_vectors(job, home.path, dataclasses.replace(options, progress=watch))
        if options.report and out is not None:
            leave_report(home.path, matrix, home.path, watch, options)
        return home.keep(result)


def _training_settings(matrix: Matrix, recipe: str, settings: Mapping[str, Any]) -> tuple[TrainConfig, VectorsConfig]:
    train_config, vectors_config = split_settings(recipe, settings, TrainConfig, VectorsConfig)
    if not matrix.columns_per_row and vectors_config.combine != "rows":
        if settings.get("combine") is not None:
            raise ConfigError(
                f"combine must be rows for a matrix whose columns are not its rows' words, got {settings['combine']!r}"
            )
        vectors_config = dataclasses.replace(vectors_config, combine="rows")
    return train_config, vectors_config


def run(
    texts: Texts,
    out: str | Path,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | None = None,
    init: Vectors | str | Path | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Go from text to vectors: `out/matrix`, then `out/vectors`; finished stages are not done again.

    With `Means(report=True)` it leaves `out/report.html`.

    Parameters
    ----------
    init
        Vectors to start from, as in `train`.
    settings
        Fields of every stage's configuration.
    """
    split_settings(recipe, settings, *STAGES.values())
    to_count = _settings_of(settings, CorpusConfig, VocabularyConfig, CountConfig)
    to_train = _settings_of(settings, TrainConfig, VectorsConfig)
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path}: not a folder")
    with hold_folder(path), reported(path, options or RunOptions()) as timed:
        matrix = count(texts, path / "matrix", recipe=recipe, vocabulary=vocabulary, options=timed, **to_count)
        return train(matrix, path / "vectors", recipe=recipe, init=init, options=timed, **to_train)


@contextmanager
def reported(path: Path, options: RunOptions) -> Iterator[RunOptions]:
    """Yield means for the stages of a run, whose one report is written into its folder when they are done."""
    watch = Stopwatch(options.progress)
    yield dataclasses.replace(options, progress=watch, report=False)
    if options.report:
        from swivel.counts import open_matrix
        from swivel.reports.run_report import leave_report

        leave_report(path / "vectors", open_matrix(path / "matrix"), path, watch, options)


def _settings_of(settings: Mapping[str, Any], *stages: type[Any]) -> dict[str, Any]:
    """Return the settings that stages know; the device is one of several."""
    names = {field.name for stage in stages for field in dataclasses.fields(stage)}
    return {name: value for name, value in settings.items() if name in names}
