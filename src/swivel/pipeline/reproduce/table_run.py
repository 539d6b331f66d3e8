"""`swivel reproduce --table`: compare Swivel with other methods on one split of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from swivel.config import POSITIVE_INT
from swivel.counts import Matrix, open_matrix
from swivel.counts.importers import import_counts
from swivel.errors import ConfigError
from swivel.evaluation.table_baselines import (
    BASELINES,
    Candidates,
    Table,
    choose_fit,
    split_in_three,
    why_left_out,
)
from swivel.pipeline.reproduce.stages import StageJob, Stages
from swivel.pipeline.reproduce.subprocess import Runner, run_in_process
from swivel.pipeline.reproduce.table_report import TABLE_METHODS, TableResults, gather_table, write_table_report
from swivel.pipeline.sparse_fit import fit_sparse
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.storage import MANIFEST, create_folder, hold_folder

TABLE_DIM = 64
STAGE = "ranking"
PER_ROW = "per_row.npy"


def reproduce_table(
    table: str | Path,
    out: str | Path,
    *,
    methods: Sequence[str] = tuple(TABLE_METHODS),
    dim: int = TABLE_DIM,
    options: RunOptions | None = None,
    runner: Runner = run_in_process,
    **settings: Any,
) -> TableResults:
    """Rank held-out cells of a table by several methods, and write `out/report.html` and `out/report.md`.

    The cells are split at random: 60 % to train, 20 % to choose the settings of each method, 20 % for the report. A
    method whose library is not installed is left out, which a message and the report say. If the call is interrupted,
    repeat it to resume: finished methods are not run again.

    Parameters
    ----------
    table
        A file that `swivel.import_counts` reads, or the folder of a matrix.
    out
        Folder for the report and the results of each method.
    methods
        Names of methods; the others are compared with the first one.
    dim
        Dimensions of a vector; popularity and EASE have none.
    options
        Threads, memory, progress and overwriting.
    runner
        Function that runs a method; by default each runs in a separate process.
    settings
        Fields of ImportConfig, such as `fields` and `header`.
    """
    options = options or RunOptions()
    _check_methods(methods)
    if not POSITIVE_INT.holds(dim):
        raise ConfigError(f"dim must be {POSITIVE_INT.words}, got {dim!r}")
    check_libraries("training")

    with hold_folder(out):
        matrix = _open_table(Path(table), Path(out) / "matrix", options, settings)
        left_out = {name: why_left_out(name, matrix.shape[1]) for name in methods}
        for name, reason in left_out.items():
            if reason is not None:
                options.progress.message(f"{name} is left out: {reason}")
        if all(left_out.values()):
            raise ConfigError("no method is left to run: install what is missing, or choose other methods")

        stages = Stages(Path(out), options, runner)
        folders = {}
        for name in methods:
            if left_out[name] is None:
                folder = Path(out) / "methods" / name
                provenance = {"config": {"method": name, "dim": dim}, "inputs": {"matrix": matrix.fingerprint}}
                run = partial(_rank_cells, matrix.path, folder, provenance)
                folders[name] = stages.do(f"method {name}", StageJob(folder, provenance, run))

        reasons = {name: reason for name, reason in left_out.items() if reason is not None}
        results = gather_table(Path(table).name, matrix, folders, reasons, dim=dim, threads=options.threads)
        write_table_report(Path(out), results)
        return results


def _check_methods(methods: Sequence[str]) -> None:
    if not methods or len(set(methods)) < len(methods) or not set(methods) <= set(TABLE_METHODS):
        names = ", ".join(TABLE_METHODS)
        raise ConfigError(f"methods must be one or more different ones of {names}, got {', '.join(methods)!r}")


def _open_table(table: Path, folder: Path, options: RunOptions, settings: dict[str, Any]) -> Matrix:
    """Return the matrix of a folder, or that of a file, which is imported into `folder` once."""
    if (table / MANIFEST).exists():
        if any(settings.values()):
            raise ConfigError("fields and header are for files, and this table is a matrix already: omit them")
        return open_matrix(table)
    return import_counts(table, folder, options=options, **settings)


def _rank_cells(matrix: Path, folder: Path, provenance: dict[str, Any], *, options: RunOptions) -> None:
    """Fit one method and save how it ranks the test cells of each row."""
    import scipy.sparse

    method, dim = provenance["config"]["method"], provenance["config"]["dim"]
    split = split_in_three(scipy.sparse.csr_array(open_matrix(matrix).to_scipy()))
    if method in BASELINES:
        candidates = BASELINES[method](split.train, dim)
    else:
        candidates = fit_swivel(split.train, dim, options, tune=method == "tuned")
    chosen = choose_fit(candidates, split)

    facts = {"settings": chosen.settings, "tried": chosen.tried, "cpu_seconds": chosen.cpu_seconds}
    with create_folder(folder, STAGE, overwrite=True) as writer:
        writer.write_array(PER_ROW, chosen.report.per_row)
        writer.finish(**provenance, facts=facts | chosen.report.to_dict())


def fit_swivel(train: Table, dim: int, options: RunOptions, *, tune: bool = False) -> Candidates:
    """Return Swivel's vectors with the recipe `table`: settings follow from the table, or are tuned on a part of it."""
    # Load torch and compile kernels before the time is taken.
    fit_sparse(train, options=replace(options, progress=SILENT), dim=dim, epochs=1)

    def fit() -> Candidates:
        fitted = fit_sparse(train, options=options, dim=dim, tune=tune)
        settings = f"weight decay {fitted.config.weight_decay:.2g}"
        yield (
            settings if fitted.popularity is None else f"{settings}, popularity {fitted.popularity:.2g}",
            fitted.scores(),
        )

    return fit()
