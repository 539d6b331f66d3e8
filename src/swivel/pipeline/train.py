"""`swivel train`: a matrix to vectors."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import RECIPES, TEXT_RECIPES, TrainConfig, VectorsConfig, settings_of, stage_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, as_matrix
from swivel.counts.importers import import_counts
from swivel.errors import ConfigError, FolderExists, SwivelWarning
from swivel.pipeline.report_job import ReportJob, timed_options
from swivel.pipeline.settings import resolve_training
from swivel.runtime.options import RunOptions, check_names, make_options
from swivel.runtime.progress import Progress
from swivel.runtime.resources import check_libraries, find_rank, is_leading
from swivel.runtime.signals import defer_signals
from swivel.storage.lock import hold_folder, remove_file
from swivel.storage.output_folder import check_output, has_result, refuse_foreign, refuse_overlap
from swivel.training.checkpoint import refuse_other_run, sweep_checkpoints
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import as_vectors, source_of
from swivel.vectors.subwords import MIN_WORDS

if TYPE_CHECKING:
    from swivel.pipeline.tune import Tuning

MAX_GRAPH_DENSITY = 0.05  # of which the recipe graph samples zeros
LITTLE_TEXT = 5e6  # tokens; with fewer, the recipe default has more weight decay
MAX_TEXT_DECAY = 1e-3
TUNING = "tuning.json"  # the record of an unfinished search, in the folder of the vectors


def train(
    matrix: Matrix | str | Path,
    out: str | Path | None = None,
    *,
    recipe: str | None = None,
    init: Vectors | str | Path | None = None,
    tune: bool = False,
    dim: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Train vectors for a matrix and return them, in memory or opened from the folder `out` that they are written to.

    With a folder, an interrupted run is resumed from its last checkpoint when the function is called again with the
    same arguments; Ctrl-C saves one first. With `report=True` the report `out/report.html` is written, too.
    A warning says if the matrix was counted with other columns than the recipe has.

    Parameters
    ----------
    matrix
        A matrix, or the folder of one.
    recipe
        Named settings: default, fast, paper, table or graph. By default `table` if rows and columns are things of
        different kinds or the edges of a graph, `graph` for counts of walks and other pairs of the same things,
        otherwise the recipe that the text was counted with, or `default`.
    init
        Vectors to start from, or the folder of a training run. Words that both have start at their old vectors, other
        words are added, and a third of the epochs is enough. `dim` is that of `init`.
    tune
        For tables: choose the weight decay, and the part of popularity in rankings, on a tenth of the cells, in 5 to 10
        more trainings; the manifest records them. An interrupted search is resumed, too.
    dim, epochs, seed
        Dimensions of a vector, number of times that every cell is visited, seed of all random numbers.
    device, options
        As in `swivel.count`.
    settings
        Other fields of TrainConfig and VectorsConfig.
    """
    check_libraries("training", needs_torch=True)
    options = make_options(options, settings)
    check_names(settings, TrainConfig, VectorsConfig)
    matrix = as_matrix(matrix)
    path = None if out is None else Path(out)
    if path is None and find_rank() is not None:
        raise ConfigError("ranks that torchrun starts need a folder that all of them see: pass out", argument="out")
    if path is not None:
        refuse_overlap([path], [matrix.path, source_of(init)])

    recipe = recipe or _choose_recipe(matrix, options.progress)
    _compare_recipe(matrix, recipe)
    settings |= {"dim": dim, "epochs": epochs, "seed": seed, "device": device}
    # The search and the training have the same settings but for the weight decay.
    if tune:
        return _tune_and_train(matrix, path, recipe, settings, options, has_init=init is not None)

    init = None if init is None else as_vectors(init)
    configs = resolve_configs(matrix, recipe, settings, init)
    _warn_of_sums(matrix, configs[0])
    popularity = _choose_popularity(matrix, configs[0]) if recipe == "table" else None
    return train_vectors(matrix, path, *configs, timed_options(path, options), init=init, popularity=popularity)


def _tune_and_train(
    matrix: Matrix, path: Path | None, recipe: str, settings: dict[str, Any], options: RunOptions, *, has_init: bool
) -> Vectors:
    with defer_signals():
        from swivel.pipeline.tune import check_tunable, tune_table, tuned_weight_decay
        from swivel.training.loop import run_provenance

    check_tunable(matrix, recipe, settings, has_init=has_init)
    config, vectors_config = resolve_configs(matrix, recipe, settings)
    if path is not None and not options.overwrite:
        refuse_foreign(path, "vectors")  # before the lock, by which the folder looks like one of ours
    if path is not None and not options.overwrite and not (path / TUNING).exists():
        # The search would end in a run that has another weight decay than any that is in the folder.
        refuse_other_run(path, run_provenance(matrix, dataclasses.replace(config, weight_decay=0.0), None))

    timed = timed_options(path, options)  # the report has the whole time, but not the stages of the search
    with contextlib.nullcontext() if path is None else hold_folder(path):
        tuning = tune_table(matrix, path, config, settings=settings, options=options)
        tuned = dataclasses.replace(config, weight_decay=tuned_weight_decay(config, tuning))
        popularity = tuning.best.popularity
        result = train_vectors(matrix, path, tuned, vectors_config, timed, popularity=popularity, tuning=tuning)
        if path is not None:
            remove_file(path / TUNING)  # also if the result was finished, and the process killed just then
        return result


def _choose_recipe(matrix: Matrix, progress: Progress) -> str:
    from swivel.training.table_settings import is_table

    recipe = _find_counted(matrix)
    reason = "the matrix was counted with its settings"
    if matrix.edges is not None and matrix.edges.nnz < matrix.cell_count:
        recipe, reason = "graph", "counts of walks"
    elif "graph" in matrix.config and (matrix.edges is not None or matrix.config["graph"]["walks"] is None):
        recipe, reason = "table", "edges of a graph"
    elif is_table(matrix):
        recipe, reason = "table", "rows and columns are of different kinds"
    elif matrix.config.keys() & {"import", "sum"} and matrix.is_symmetric:
        recipe, reason = "graph", "counts of pairs that are not from a text"
    if recipe != "default" and is_leading():
        progress.message(f"training with the recipe {recipe}: {reason}")
    return recipe


def _find_counted(matrix: Matrix) -> str:
    """Return the recipe that a text was counted with; `default` if it was none, or the counts are those of a table."""
    for recipe in ("default", "paper", "fast"):  # What the recipe fast sets, paper sets, too.
        stages = [(matrix.config.get(stage, {}), RECIPES[recipe].get(stage, {})) for stage in ("corpus", "count")]
        if all(recorded.get(name) == value for recorded, values in stages for name, value in values.items()):
            return recipe
    return "default"


def _warn_of_sums(matrix: Matrix, config: TrainConfig) -> None:
    """Warn if the sums that were imported have no effect."""
    if matrix.has_own_sums and config.transform == "log" and is_leading():
        text = "the sums that were imported are not those of log(1 + x): pass transform='none' to train with them"
        warnings.warn(text, SwivelWarning, stacklevel=3)


def _compare_recipe(matrix: Matrix, recipe: str) -> None:
    """Warn if a text was counted with other columns than a recipe has."""
    columns = matrix.config.get("count", {}).get("columns")
    columns_of = {name: stages["count"]["columns"] for name, stages in RECIPES.items()}
    if columns is None or columns_of.get(recipe, columns) == columns or not is_leading():
        return

    fitting = [name for name in TEXT_RECIPES if columns_of[name] == columns]
    other = f", or train with {' or '.join(fitting)}" if fitting else ""
    text = (
        f"the matrix was counted with {columns} columns, but the recipe {recipe} has {columns_of[recipe]} ones; "
        f"for these, count again with the recipe {recipe}{other}"
    )
    warnings.warn(text, SwivelWarning, stacklevel=3)


def train_vectors(
    matrix: Matrix,
    path: Path | None,
    config: TrainConfig,
    vectors_config: VectorsConfig,
    options: RunOptions,
    *,
    folder: Path | None = None,
    init: Vectors | None = None,
    popularity: float | None = None,
    tuning: Tuning | None = None,
) -> Vectors:
    """Train vectors for a matrix with resolved settings, unless the folder `path` holds them already.

    `options` are timed ones; the report is written to `folder`, by default `path`. `popularity`, the part of popularity
    in rankings, and `tuning`, the search that settings are from, are recorded.
    """
    with defer_signals():  # A signal that arrives while torch is imported is handled after the import.
        from swivel.pipeline.train_job import describe_provenance, run_training
        from swivel.training.initialization import find_start
        from swivel.training.loop import run_provenance

    start = None if init is None else find_start(matrix.transformed(config.transform), init, config)
    provenance = describe_provenance(matrix, config, vectors_config, start, popularity)

    check_output(path, [], options)
    report = ReportJob(folder or path, path, matrix, options)
    # Finished: only checkpoints that a killed process could not remove are left to do.
    if path is not None and has_result(path, "vectors", provenance, options):
        sweep_checkpoints(path, run_provenance(matrix, config, start))
        result = Vectors.load(path)
        report.write(result)
        return result

    if path is not None and not options.overwrite:
        refuse_other_run(path, run_provenance(matrix, config, start))
        if tuning is None and (path / TUNING).exists():
            raise FolderExists(
                f"{path}: holds an unfinished search; pass tune=True and the same settings to resume it, "
                "choose another folder, or pass overwrite=True"
            )
    inputs = matrix, config, vectors_config, path, options
    with report.prepare(config.device):
        result = run_training(*inputs, start=start, provenance=provenance, tuning=tuning, when_trained=report.begin)
        if path is not None:
            remove_file(path / TUNING)  # The search is over, or another training replaces its result.
        report.write(result)
    return result


def _choose_popularity(matrix: Matrix, config: TrainConfig) -> float:
    from swivel.training.table_settings import choose_popularity

    trained_on = matrix.transformed(config.transform)
    return choose_popularity(matrix.shape[0], matrix.cell_count, trained_on.column_sums)


def resolve_configs(
    matrix: Matrix, recipe: str, settings: Mapping[str, Any], init: Vectors | None = None
) -> tuple[TrainConfig, VectorsConfig]:
    """Return how vectors of a matrix are trained and combined; rows are not added to columns of another kind."""
    settings = settings_of(settings, TrainConfig, VectorsConfig)
    transform = stage_config(TrainConfig, recipe, **settings).transform
    if not matrix.columns_per_row:
        # w + c makes sense only where row i and column i are the same word.
        combine = settings.setdefault("combine", "rows")
        if combine != "rows":
            raise ConfigError(
                f"combine must be rows for a matrix whose columns are not its rows' words, got {combine!r}",
                argument="combine",
            )
    if recipe != "table" and "unseen" not in settings:
        # Absent counts of walks are below the smallest one that is not omitted, suppressed counts below a limit.
        if recipe == "graph" and matrix.edges is not None:
            smallest = int(matrix.arrays.counts.min()) / matrix.unit
            settings["unseen"] = float(f"{min(smallest, 1.0):.9g}")
        if matrix.absent_units:
            settings["unseen"] = float(f"{matrix.transformed(transform).absent_bound:.9g}")
    # The sample of zeros suits counts of which 1 % are observed; at 13 % it is too small (experiments/suppressed.md).
    if recipe == "graph" and matrix.cell_count > MAX_GRAPH_DENSITY * matrix.shape[0] * matrix.shape[1]:
        settings.setdefault("zeros", "all")
    # Only for tables do other settings follow from the counts.
    if recipe != "table":
        config, vectors_config = resolve_training(recipe, settings, init)
        return adapt_to_text(matrix, recipe, config, settings, init), vectors_config

    from swivel.training.table_settings import choose_learning_rate, choose_table_settings, choose_weight_decay

    trained_on = matrix.transformed(transform)
    config, vectors_config = resolve_training(recipe, {**choose_table_settings(trained_on), **settings}, init)
    if "learning_rate" not in settings and init is None:
        config = dataclasses.replace(config, learning_rate=choose_learning_rate(config))
    if "weight_decay" not in settings:
        config = dataclasses.replace(config, weight_decay=choose_weight_decay(trained_on, config))
    return config, vectors_config


def adapt_to_text(
    matrix: Matrix, recipe: str, config: TrainConfig, settings: Mapping[str, Any], init: Vectors | None
) -> TrainConfig:
    """Return the settings with the weight decay that follows from the length of a text, if it is not given."""
    # Other vectors, from which training starts, must not be moved by a small text more than by a large one.
    is_text = recipe == "default" and "corpus" in matrix.config and len(matrix.rows) >= MIN_WORDS
    if not is_text or init is not None or settings.get("weight_decay") is not None:
        return config
    return dataclasses.replace(config, weight_decay=choose_text_decay(int(matrix.rows.counts.sum())))


def choose_text_decay(tokens: int) -> float:
    """Return the weight decay of the recipe `default` for a text: little text needs more (experiments/notes.md).

    >>> [choose_text_decay(tokens) for tokens in (10_000, 300_000, 1_500_000, 5_000_000, 64_000_000)]
    [0.001, 0.00083, 0.00017, 5e-05, 5e-05]
    """
    decay = RECIPES["default"]["train"]["weight_decay"] * max(LITTLE_TEXT / max(tokens, 1), 1.0)
    return min(float(f"{decay:.2g}"), MAX_TEXT_DECAY)


def fit_sparse(counts: Any, *, recipe: str = "table", options: RunOptions, **settings: Any) -> Vectors:
    """Return vectors of the rows and columns of a sparse matrix, labeled with their positions, in its order.

    `settings` are those of `swivel.train`. Nothing is written.
    """
    # Labels are positions, because training needs rows and columns by descending sum.
    matrix = import_counts(counts, options=options)
    vectors = train(matrix, recipe=recipe, options=options, combine="rows", **settings)
    assert vectors.row_sums is not None and vectors.columns is not None and vectors.column_sums is not None
    return vectors.replace(
        rows=_restore_order(vectors.vocabulary, vectors.rows, vectors.row_sums),
        columns=_restore_order(matrix.columns, vectors.columns, vectors.column_sums),
        columns_per_row=0,
    )


def _restore_order(labels: Vocabulary, values: NDArray[np.float32], sums: NDArray[np.float64]) -> VectorTable:
    """Return the vectors and sums in the order of the positions that are their labels."""
    # Training sorts rows and columns by decreasing sum.
    order = np.argsort(np.array(labels.tokens, np.int64))
    positions = Vocabulary(map(str, range(len(order))), labels.counts[order])
    return VectorTable(positions, values[order], sums[order])
