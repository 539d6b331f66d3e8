"""`swivel train --tune`: choose the weight decay of a table, and the part of popularity, on held-out cells.

The search trains on nine tenths of the cells and ranks the others. It multiplies the weight decay that follows from the
table by powers of sqrt(2), moving uphill in steps of 2 first. Every fit also gives the best factor of popularity, which
needs no training. Finished fits are recorded in the folder of the vectors, so that an interrupted search is resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from swivel.config import TrainConfig, result_settings, settings_of
from swivel.counts import Matrix
from swivel.errors import ConfigError, FolderExists
from swivel.evaluation.table_ranking import Scores, evaluate_ranking, split_table
from swivel.pipeline.train import TUNING, fit_sparse
from swivel.recommender import MAX_LINKED_COLUMNS, ColumnRanking, find_links
from swivel.runtime.numbers import plural
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, track
from swivel.runtime.resources import find_rank
from swivel.storage.files import write_file
from swivel.storage.manifest import MANIFEST, fingerprint, read_manifest, read_record, seal, unseal
from swivel.training.table_settings import drop_empty, find_weight_decay, is_table
from swivel.vectors import Vectors

VERSION = 3  # of the search, in the identity of its record
HELD_OUT = 0.1  # share of the cells
MAX_ROWS = 50_000  # to train on; of a larger table, so many random rows
MAX_RANKED_ROWS = 5_000
MAX_EXPONENT = 6  # factors of the weight decay are from 1/8 to 8
POPULARITIES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Trial(NamedTuple):
    """A fit of the search: its factor of the weight decay is sqrt(2)^exponent."""

    exponent: int
    popularity: float
    recall: float
    ndcg: float

    @property
    def score(self) -> float:
        """What the search maximizes."""
        return self.recall + self.ndcg


@dataclass(frozen=True, slots=True)
class Tuning:
    """The finished fits of a search; `identity` is a digest of the table and of all settings."""

    identity: str
    trials: tuple[Trial, ...] = ()

    @property
    def best(self) -> Trial:
        """The fit with the highest score."""
        return max(self.trials, key=lambda trial: trial.score)

    def next_exponent(self) -> int | None:
        """Return what to try next: a step of 2 up or down from the best so far, then of sqrt(2); None at the end."""
        if not self.trials:
            return 0
        # Coarse steps first: neighbors in exponent have nearly the same score.
        tried = {trial.exponent for trial in self.trials}
        for step in (2, -2, 1, -1):
            exponent = self.best.exponent + step
            if abs(exponent) <= MAX_EXPONENT and exponent not in tried:
                return exponent
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the search as JSON has it."""
        return {"identity": self.identity, "trials": [trial._asdict() for trial in self.trials]}


def tune_table(
    matrix: Matrix, out: Path | None, config: TrainConfig, *, settings: Mapping[str, Any], options: RunOptions
) -> Tuning:
    """Search the weight decay of a table and return all fits; `config` has the settings without tuning."""
    # A record of another table or of other settings must not be continued.
    identity = fingerprint([VERSION, matrix.fingerprint, result_settings(config)])
    tuning = _read_tuning(out, identity, options)
    exponent = tuning.next_exponent()
    if exponent is None:
        return tuning

    # The number of fits is not known: the search ends beside the best one.
    with track(options.progress, "tuning", None, "fits") as task:
        task.advance(len(tuning.trials))
        search = _Search(matrix, config, settings, options)
        while exponent is not None:
            trial = search.try_exponent(exponent)
            tuning = dataclasses.replace(tuning, trials=(*tuning.trials, trial))
            if out is not None:
                write_file(out / TUNING, seal(tuning.to_dict()))
            task.advance(1, _describe(tuning))
            exponent = tuning.next_exponent()

    options.progress.message(f"tuned in {plural(len(tuning.trials), 'fit')}: {_describe(tuning)}")
    return tuning


def _describe(tuning: Tuning) -> str:
    best = tuning.best
    return (
        f"{2 ** (best.exponent / 2):.3g} times the weight decay of the recipe, popularity {best.popularity:g}: "
        f"held-out recall@20 {best.recall:.3f}, untuned {tuning.trials[0].recall:.3f}"
    )


def check_tunable(matrix: Matrix, recipe: str, settings: Mapping[str, Any], *, has_init: bool) -> None:
    """Raise ConfigError if there is nothing to tune."""
    if not is_table(matrix):
        raise ConfigError(
            "tune is for tables; this matrix has counts of things of one kind, such as words: omit tune",
            argument="tune",
        )
    if recipe != "table":
        raise ConfigError(f"tune needs the recipe table, got {recipe!r}: omit one of them", argument="tune")
    if settings.get("weight_decay") is not None:
        raise ConfigError("weight_decay is what tune chooses: omit one of them", argument=("weight_decay", "tune"))
    if has_init:
        raise ConfigError("tune starts from random vectors: omit init or tune", argument=("tune", "init"))
    if find_rank() is not None:
        raise ConfigError(
            "tune works in one process, without torchrun: train there with the weight_decay it finds",
            argument=("tune", "weight_decay"),
        )


def _read_tuning(out: Path | None, identity: str, options: RunOptions) -> Tuning:
    """Return the fits that an earlier call recorded, none if it had another table or other settings."""
    if out is None:
        return Tuning(identity)

    # A search that was interrupted is continued, even if it will overwrite a finished result.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # There is none, or it is damaged.
        record = unseal(read_record(out / TUNING))
        if record["identity"] == identity:
            return _restore_tuning(record)
        if not options.overwrite:
            raise FolderExists(
                f"{out}: holds an unfinished search with other settings or inputs; use the same ones to resume it, "
                "choose another folder, or pass overwrite=True"
            )
    if options.overwrite or not (out / MANIFEST).exists():
        return Tuning(identity)

    finished = read_manifest(out).facts.get("tuning") or {}
    if finished.get("identity") != identity:
        raise FolderExists(
            f"{out}: finished already with other settings or inputs; choose another folder or pass overwrite=True"
        )
    return _restore_tuning(finished)


def _restore_tuning(record: Mapping[str, Any]) -> Tuning:
    return Tuning(record["identity"], tuple(Trial(**trial) for trial in record["trials"]))


class _Search:
    """Training and held-out cells of a table, and fits of the former."""

    def __init__(self, matrix: Matrix, config: TrainConfig, settings: Mapping[str, Any], options: RunOptions) -> None:
        rng = np.random.default_rng(config.seed)
        counts = scipy.sparse.csr_array(matrix.to_scipy())
        if counts.shape[0] > MAX_ROWS:
            counts = counts[np.sort(rng.choice(counts.shape[0], MAX_ROWS, replace=False))]
        self.train, held_out = split_table(counts, HELD_OUT, seed=config.seed)
        if not held_out.nnz or not self.train.nnz:
            raise ConfigError(
                f"tune holds out a tenth of the cells, and this table has only {counts.nnz}: omit tune", argument="tune"
            )

        # Ranking every row of a large table would take longer than training on it.
        rows = np.flatnonzero(np.diff(held_out.indptr))
        is_ranked = np.zeros(counts.shape[0], bool)
        is_ranked[rng.permutation(rows)[:MAX_RANKED_ROWS]] = True
        self.held_out = scipy.sparse.csr_array(held_out.multiply(is_ranked[:, None]))

        # They do not depend on what is tuned.
        self.links = find_links(self.train) if counts.shape[1] <= MAX_LINKED_COLUMNS else None
        self.settings = settings_of(settings, TrainConfig)
        self.options = dataclasses.replace(options, progress=SILENT, overwrite=False, report=False, ray=None)
        # The factors of the search multiply the weight decay of the part that is trained on.
        damped = self.train.log1p() if config.transform == "log" else self.train
        self.weight_decay = find_weight_decay(drop_empty(scipy.sparse.coo_array(damped)), config)

    def try_exponent(self, exponent: int) -> Trial:
        """Train with a weight decay and return the result with the best popularity, which needs no training."""
        weight_decay = self.weight_decay * 2 ** (exponent / 2)
        fit = fit_sparse(self.train, options=self.options, **{**self.settings, "weight_decay": weight_decay})
        trials = []
        for popularity in (fit.settings["ranking"]["popularity"], *POPULARITIES):
            report = evaluate_ranking(self._rank(fit, popularity), self.held_out, self.train)
            trials.append(Trial(exponent, popularity, round(report.recall, 6), round(report.ndcg, 6)))
        return max(trials, key=lambda trial: trial.score)

    def _rank(self, fit: Vectors, popularity: float) -> Scores:
        """Return what scores rows as a `Recommender` of the vectors does."""
        assert fit.columns is not None and fit.column_sums is not None
        ranking = ColumnRanking(fit.columns, fit.column_sums, len(fit), popularity, self.links)
        return lambda rows: ranking.score(fit.rows[rows], self.train[rows])


def tuned_weight_decay(config: TrainConfig, tuning: Tuning) -> float:
    """Return the weight decay of the whole table with the factor that was best; `config` is the one without tuning."""
    return float(f"{config.weight_decay * 2 ** (tuning.best.exponent / 2):.9g}")
