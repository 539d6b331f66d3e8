"""The jobs of an experiment: counting, training, and the word2vec baselines.

A job can be pickled and runs in a separate process. It writes one folder; `provenance` returns the settings and inputs
that the folder depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from swivel.config import CorpusConfig, TrainConfig, VectorsConfig, result_settings
from swivel.corpus import fingerprint_sources
from swivel.counts import open_matrix
from swivel.evaluation.baselines import BaselineConfig, baseline_settings, keep_vectors, train_word2vec
from swivel.pipeline.count import count
from swivel.pipeline.reproduce.config import count_settings
from swivel.pipeline.result_folder import is_done
from swivel.pipeline.settings import split_settings
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.storage import checksum, fingerprint, read_manifest


@dataclass(frozen=True, slots=True)
class CountStage:
    """Count a text with the settings of a recipe."""

    resumes: ClassVar[bool] = False

    texts: tuple[Path, ...]
    out: Path
    recipe: str
    settings: Mapping[str, Any]

    def provenance(self) -> dict[str, Any]:
        """Return the settings and inputs that the counts depend on."""
        configs = count_settings(self.recipe, self.settings)
        return {"configs": configs, "texts": fingerprint_sources(list(self.texts), CorpusConfig(**configs["corpus"]))}

    def run(self, options: RunOptions) -> None:
        """Count the text into the folder `out`."""
        count(list(self.texts), self.out, recipe=self.recipe, options=options, **self.settings)


@dataclass(frozen=True, slots=True)
class TrainStage:
    """Train vectors on a matrix with the settings of a recipe."""

    resumes: ClassVar[bool] = True

    matrix: Path
    out: Path
    recipe: str
    settings: Mapping[str, Any]

    def provenance(self) -> dict[str, Any]:
        """Return the settings and inputs that the vectors depend on."""
        configs = split_settings(self.recipe, self.settings, TrainConfig, VectorsConfig)
        return {"configs": [result_settings(config) for config in configs], "matrix": fingerprint_of(self.matrix)}

    def run(self, options: RunOptions) -> None:
        """Train, or resume from the last checkpoint."""
        train(self.matrix, self.out, recipe=self.recipe, options=options, **self.settings)


@dataclass(frozen=True, slots=True)
class Word2vecJob:
    """Train word2vec on a text with the vocabulary of a matrix."""

    resumes: ClassVar[bool] = False

    texts: tuple[Path, ...]
    matrix: Path
    out: Path
    method: str
    settings: Mapping[str, Any]

    def provenance(self) -> dict[str, Any]:
        """Return the settings and inputs that the vectors depend on."""
        words = fingerprint(list(open_matrix(self.matrix).rows))
        inputs = {**fingerprint_sources(list(self.texts), self._config().corpus), "vocabulary": words}
        return {"config": baseline_settings(self.method, self._config()), "inputs": inputs}

    def _config(self) -> BaselineConfig:
        counting = {name: value for name, value in self.settings.items() if name not in ("dim", "seed")}
        corpus = CorpusConfig(**count_settings("default", counting)["corpus"])
        return BaselineConfig(dim=self.settings["dim"], seed=self.settings["seed"], corpus=corpus)

    def run(self, options: RunOptions) -> None:
        """Train, unless the folder has the vectors already."""
        provenance = self.provenance()
        if is_done(self.out, "vectors", provenance, options):
            return

        vectors = train_word2vec(
            list(self.texts),
            open_matrix(self.matrix).rows,
            method=self.method,
            config=self._config(),
            options=options,
            scratch=self.out,
        )
        keep_vectors(vectors, self.out, **provenance, overwrite=options.overwrite)


def fingerprint_of(path: Path) -> str:
    """Return a digest of the content of a finished folder or of a file."""
    if path.is_file():
        return checksum(path)
    return fingerprint({name: part.sha256 for name, part in sorted(read_manifest(path).parts.items())})
