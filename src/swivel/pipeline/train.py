"""`swivel train`: a matrix to vectors."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.config import RECIPES, WARM_START, CountConfig, TrainConfig, VectorsConfig, stage_config
from swivel.errors import ConfigError, SwivelWarning
from swivel.pipeline.report_job import ReportJob
from swivel.pipeline.settings import given, make_options, split_settings
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress, Stopwatch
from swivel.runtime.resources import find_rank, is_leading
from swivel.runtime.signals import defer_signals
from swivel.storage import MANIFEST, hold_folder, remove_file
from swivel.storage.overlap import refuse_overlap
from swivel.storage.result_folder import folder_or_temporary, is_done

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.pipeline.tune import Tuning
    from swivel.vectors import Vectors


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
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Progress | bool | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Train vectors for a matrix and return them; they are written to the folder `out`, if there is one.

    An interrupted run is resumed from its last checkpoint when the function is called again with the same arguments;
    Ctrl-C saves one first. With `RunOptions(report=True)` the report `out/report.html` is written, too. A warning says
    if the matrix was counted with other columns than the recipe has.

    Parameters
    ----------
    matrix
        A matrix, or the folder of one.
    recipe
        Named settings: default, fast, paper or table. By default `table` if rows and columns are things of
        different kinds, and otherwise `default`.
    init
        Vectors to start from, or the folder of a training run. Words that both have start at their old vectors, other
        words are added, and a third of the epochs is enough. `dim` is that of `init`.
    tune
        For tables: choose the weight decay, and the part of popularity in rankings, on a tenth of the cells, in 5 to 10
        more trainings; the manifest records them. An interrupted search is resumed, too.
    dim, epochs, seed
        Dimensions of a vector, number of times that every cell is visited, seed of all random numbers.
    device
        "auto", "cpu", "cuda", or any device as torch names it.
    threads, memory, progress
        Number of threads, bytes of memory (or a text such as "1GiB"), and a receiver of progress events;
        by default a progress bar for work that takes longer than a second, False for none.
    options
        Further run options: `RunOptions`.
    settings
        Other fields of TrainConfig and VectorsConfig.
    """
    check_libraries("training")
    with defer_signals():  # A signal that arrives while torch is imported is handled after the import.
        from swivel.counts import as_matrix

    options = make_options(options, threads=threads, memory=memory, progress=progress)
    matrix = as_matrix(matrix)
    recipe = recipe or _choose_recipe(matrix, options.progress)
    _compare_recipe(matrix, recipe)
    chosen: dict[str, Any] = {**settings, **given(dim=dim, epochs=epochs, seed=seed, device=device)}
    if tune:
        return _tune_and_train(matrix, out, recipe=recipe, init=init, options=options, settings=chosen)
    return train_counted(matrix, out, recipe=recipe, init=init, options=options, settings=chosen)


def _tune_and_train(
    matrix: Matrix,
    out: str | Path | None,
    *,
    recipe: str,
    init: Vectors | str | Path | None,
    options: RunOptions,
    settings: dict[str, Any],
) -> Vectors:
    """Choose settings on held-out cells of a table and train with all of its cells."""
    with defer_signals():
        from swivel.counts.transform import transform_counts
        from swivel.pipeline.tune import TUNING, check_tunable, tune_table, tuned_weight_decay
        from swivel.training.checkpoint import refuse_other_run
        from swivel.training.loop import run_provenance

    check_tunable(matrix, recipe, settings, has_init=init is not None)
    transform = stage_config(TrainConfig, recipe, transform=settings.get("transform")).transform
    config, _ = resolve_configs(transform_counts(matrix, transform), recipe, settings)
    path = None if out is None else Path(out)
    if path is not None:
        refuse_overlap([path], [matrix.path])
        if not options.overwrite and not (path / TUNING).exists():
            # The search would end in a run that has another weight decay than any that is in the folder.
            refuse_other_run(path, run_provenance(matrix, dataclasses.replace(config, weight_decay=0.0), None))

    with contextlib.nullcontext() if path is None else hold_folder(path):
        tuning = tune_table(matrix, path, config, settings=settings, options=options)
        settings = {**settings, "weight_decay": tuned_weight_decay(config, tuning)}
        result = train_counted(
            matrix, path, recipe=recipe, init=None, options=options, settings=settings, tuning=tuning
        )
        if path is not None:
            remove_file(path / TUNING)
        return result


def _choose_recipe(matrix: Matrix, progress: Progress) -> str:
    """Return `table` if rows and columns are of different kinds, and print a message; otherwise `default`."""
    from swivel.training.table_settings import is_table

    if not is_table(matrix):
        return "default"
    if is_leading():
        progress.message("rows and columns are of different kinds: training with the recipe table")
    return "table"


def _compare_recipe(matrix: Matrix, recipe: str) -> None:
    """Warn if a text was counted with other columns than a recipe has."""
    columns = matrix.config.get("count", {}).get("columns")
    wanted = stage_config(CountConfig, recipe).columns
    if columns in (None, wanted) or not is_leading():
        return

    fitting = [name for name in RECIPES if name != "table" and stage_config(CountConfig, name).columns == columns]
    other = f", or train with {' or '.join(fitting)}" if fitting else ""
    warnings.warn(
        f"the matrix was counted with {columns} columns, but the recipe {recipe} has {wanted} ones; "
        f"for these, count again with the recipe {recipe}{other}",
        SwivelWarning,
        stacklevel=3,
    )


def train_counted(
    matrix: Matrix,
    out: str | Path | None,
    *,
    recipe: str,
    init: Vectors | str | Path | None,
    options: RunOptions,
    settings: Mapping[str, Any],
    tuning: Tuning | None = None,
    report: ReportJob | None = None,
) -> Vectors:
    """Train vectors for a matrix that was counted for this recipe; parameters are those of `train`.

    `tuning` is the search that the settings are from, for the manifest. `report` is the report of all stages of a run;
    by default, the training has one of its own.
    """
    check_libraries("training")
    if is_leading() and (out is None or not (Path(out) / MANIFEST).exists()):
        matrix.verify_ahead()  # while torch is imported
    with defer_signals():
        from swivel import vectors
        from swivel.counts.transform import transform_counts
        from swivel.pipeline.train_job import make_job, run_training
        from swivel.training.checkpoint import refuse_other_run, sweep_checkpoints
        from swivel.training.loop import run_provenance
        from swivel.vectors.formats import open_vectors, source_of

    inputs = [matrix.path, source_of(init)]
    init = open_vectors(init) if isinstance(init, (str, Path)) else init
    if init is not None:
        given = {name: value for name, value in settings.items() if value is not None}
        settings = {"dim": init.rows.shape[1], **WARM_START, **given}
    if out is None and find_rank() is not None:
        raise ConfigError("ranks that torchrun starts need a folder that all of them see: pass out")

    transform = stage_config(TrainConfig, recipe, transform=settings.get("transform")).transform
    trained_on = transform_counts(matrix, transform)
    job = make_job(trained_on, *resolve_configs(trained_on, recipe, settings), init)
    job = dataclasses.replace(job, tuning=tuning, popularity=_choose_popularity(trained_on, recipe, tuning))

    watch = Stopwatch(options.progress)
    with (
        folder_or_temporary(out, inputs) as folder,
        report or ReportJob(matrix, None if out is None else folder.path, watch, options) as report,
    ):
        was_done = is_done(folder.path, "vectors", job.provenance(), options)
        if was_done:
            sweep_checkpoints(folder.path, run_provenance(matrix, job.config, job.start))
        else:
            if not options.overwrite:
                refuse_other_run(folder.path, run_provenance(matrix, job.config, job.start))
            run_training(job, folder.path, watch, options, report)

        result = vectors.load(folder.path)
        if not was_done:
            result.trust()

        report.write(result)
        return folder.keep(result)


def _choose_popularity(matrix: Matrix, recipe: str, tuning: Tuning | None) -> float | None:
    """Return the part of popularity in rankings that the manifest records: the tuned one, or that of the table."""
    if tuning is not None:
        return tuning.best.popularity
    if recipe != "table":
        return None

    from swivel.training.table_settings import choose_popularity

    return choose_popularity(matrix.shape[0], matrix.cell_count, matrix.column_sums)


def resolve_configs(matrix: Matrix, recipe: str, settings: Mapping[str, Any]) -> tuple[TrainConfig, VectorsConfig]:
    """Return the configurations of training and of the vectors; rows are not added to columns of another kind."""
    if recipe == "table":
        from swivel.training.table_settings import choose_table_settings, choose_weight_decay

        is_given = settings.get("weight_decay") is not None
        settings = {**choose_table_settings(matrix), **given(**settings)}
    train_config, vectors_config = split_settings(recipe, settings, TrainConfig, VectorsConfig)
    if recipe == "table" and not is_given:
        train_config = dataclasses.replace(train_config, weight_decay=choose_weight_decay(matrix, train_config))
    if not matrix.columns_per_row and vectors_config.combine != "rows":
        if settings.get("combine") is not None:
            raise ConfigError(
                f"combine must be rows for a matrix whose columns are not its rows' words, got {settings['combine']!r}"
            )
        vectors_config = dataclasses.replace(vectors_config, combine="rows")
    return train_config, vectors_config
