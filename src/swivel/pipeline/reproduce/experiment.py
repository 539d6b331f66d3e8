"""The stages of an experiment; each calls the function of a verb, or a baseline, in a separate process."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from swivel.config import RECIPES, CorpusConfig, TrainConfig, VectorsConfig, result_settings, stage_config
from swivel.corpus import digest_sources, fingerprint_sources
from swivel.counts import open_matrix
from swivel.evaluation.baselines import BaselineConfig, baseline_settings, keep_vectors, train_word2vec
from swivel.pipeline.count import count
from swivel.pipeline.reproduce.config import WORD2VEC, MethodVectors, ReproduceConfig, count_settings, matrix_name
from swivel.pipeline.reproduce.corpus_slice import TEXT, slice_job
from swivel.pipeline.reproduce.stages import StageJob, Stages
from swivel.pipeline.settings import settings_of, split_settings
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.storage import fingerprint, read_manifest
from swivel.storage.result_folder import is_done


@dataclass(slots=True)
class Experiment:
    """An experiment in the folder `out`; `texts` and `matrices` (by recipe) are set when their stages are finished."""

    out: Path
    config: ReproduceConfig
    settings: dict[str, Any]
    files: list[Path]  # the files that the user passed, also if only a slice of them is used
    stages: Stages
    texts: list[Path] = field(default_factory=list)
    matrices: dict[str, Path] = field(default_factory=dict)

    @property
    def reading(self) -> CorpusConfig:
        """How the text is read, except `unit`, which each recipe sets."""
        return stage_config(CorpusConfig, "default", **settings_of(self.settings, CorpusConfig))

    @property
    def first_matrix(self) -> Path:
        """The first matrix, whose vocabulary all methods use."""
        return next(iter(self.matrices.values()))

    def take_text(self) -> None:
        """Set the texts to the files, or to a slice of them if `config.tokens` is set."""
        self.texts = self.files
        if self.config.tokens is not None:
            job = slice_job(self.files, self.out / "corpus", self.config.tokens, self.reading)
            self.texts = [self.stages.do("corpus", job) / TEXT]
            self.settings |= {"encoding": "utf-8"}  # of the slice, whatever the encoding of the files

    def count(self) -> None:
        """Count the text once for each different matrix; recipes with the same counts share one."""
        recipes = [method for method in self.config.methods if method in RECIPES] or ["default"]
        for recipe in recipes:
            name = matrix_name(recipe, self.settings)
            out = self.out / "matrices" / name
            configs = count_settings(recipe, self.settings)
            digests = digest_sources(self.texts, known=out)
            inputs = fingerprint_sources(self.texts, CorpusConfig(**configs["corpus"]), digests)

            run = partial(count, self.texts, out, recipe=recipe, **self.settings)
            job = StageJob(out, {"configs": configs, "texts": inputs}, run)
            self.matrices[recipe] = self.stages.do(f"matrix {name}", job)

    def train(self, vectors: MethodVectors) -> None:
        """Train the vectors of a method."""
        make_job = self._word2vec_job if vectors.method in WORD2VEC else self._train_job
        self.stages.do(f"vectors {vectors.name}", make_job(vectors, {"dim": self.config.dim, "seed": vectors.seed}))

    def _train_job(self, vectors: MethodVectors, settings: dict[str, Any]) -> StageJob:
        matrix = self.matrices[vectors.method]
        configs = split_settings(vectors.method, settings, TrainConfig, VectorsConfig)
        provenance = {
            "configs": [result_settings(config) for config in configs],
            "matrix": read_manifest(matrix).fingerprint,
        }

        run = partial(train, matrix, vectors.path, recipe=vectors.method, **settings)
        return StageJob(vectors.path, provenance, run, resumes=True)

    def _word2vec_job(self, vectors: MethodVectors, settings: dict[str, Any]) -> StageJob:
        config = BaselineConfig(**settings, corpus=self.reading)
        words = fingerprint(list(open_matrix(self.first_matrix).rows))
        digests = digest_sources(self.texts, known=self.first_matrix)
        inputs = {**fingerprint_sources(self.texts, config.corpus, digests), "vocabulary": words}
        provenance = {"config": baseline_settings(vectors.method, config), "inputs": inputs}

        run = partial(_train_baseline, vectors, self.texts, self.first_matrix, config, provenance)
        return StageJob(vectors.path, provenance, run)


def _train_baseline(
    vectors: MethodVectors,
    texts: list[Path],
    matrix: Path,
    config: BaselineConfig,
    provenance: dict[str, Any],
    *,
    options: RunOptions,
) -> None:
    """Train word2vec with the vocabulary of a matrix, unless the folder has the vectors already."""
    if is_done(vectors.path, "vectors", provenance, options):
        return

    words = open_matrix(matrix).rows
    trained = train_word2vec(texts, words, method=vectors.method, config=config, options=options, scratch=vectors.path)
    keep_vectors(trained, vectors.path, **provenance, overwrite=options.overwrite)
