"""Run an experiment from text to report, stage by stage; finished stages are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swivel.config import RECIPES, CorpusConfig, VocabularyConfig
from swivel.corpus import list_paths
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import open_matrix
from swivel.errors import ConfigError, missing_extra
from swivel.evaluation import EvaluationConfig, read_sets
from swivel.evaluation.datasets import TestSet
from swivel.evaluation.report import nothing_known
from swivel.pipeline.reproduce.config import WORD2VEC, ReproduceConfig, VectorsSpec, list_trained, matrix_name
from swivel.pipeline.reproduce.corpus_slice import TEXT, SliceJob
from swivel.pipeline.reproduce.evaluations import EvaluateJob, is_known
from swivel.pipeline.reproduce.gather import Ground, Made, gather_results
from swivel.pipeline.reproduce.jobs import CountStage, TrainStage, Word2vecJob
from swivel.pipeline.reproduce.results import Results
from swivel.pipeline.reproduce.stages import Stages
from swivel.pipeline.reproduce.subprocess import Runner, run_in_process
from swivel.pipeline.reproduce.write import write_report
from swivel.pipeline.settings import split_settings
from swivel.runtime.options import RunOptions
from swivel.storage import hold_folder
from swivel.vectors.formats import find_vectors, open_vectors


def reproduce(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    config: ReproduceConfig | None = None,
    options: RunOptions | None = None,
    runner: Runner = run_in_process,
    **settings: Any,
) -> Results:
    """Run the paper's experiment on a text, and write `out/report.html` and `out/report.md`.

    If the call is interrupted, repeat it to resume.

    Parameters
    ----------
    texts : str, Path or iterable of them
        Files, folders or glob patterns.
    out : str or Path
        Folder for the report and all stages.
    config : ReproduceConfig, optional
        Methods, dimensions, seeds and test sets.
    options : RunOptions, optional
        Threads, memory, progress and overwriting.
    runner : callable
        Function that runs a stage; by default each stage runs in a separate process.
    **settings
        Fields of CorpusConfig and VocabularyConfig; by default those of each recipe.

    Returns
    -------
    Results
    """
    config = config or ReproduceConfig()
    options = options or RunOptions()
    split_settings("default", settings, CorpusConfig, VocabularyConfig)  # Check the settings before any work.
    files = _list_texts(texts)

    with hold_folder(out):
        experiment = _Experiment(Path(out), config, options, dict(settings), Stages(Path(out), options, runner))
        return experiment.run(files)


def _list_texts(texts: str | Path | Iterable[str | Path]) -> tuple[Path, ...]:
    paths = [texts] if isinstance(texts, (str, Path)) else list(texts)
    files = tuple(file for path in paths for file in list_paths(path))
    if Path("-") in files:
        raise ConfigError("standard input cannot be read several times; save the text to a file")
    return files


@dataclass(slots=True)
class _Experiment:
    """One experiment and its folder; `texts` and `matrices` are set when their stages are finished."""

    out: Path
    config: ReproduceConfig
    options: RunOptions
    settings: dict[str, Any]
    stages: Stages
    texts: tuple[Path, ...] = ()
    matrices: dict[str, Path] = field(default_factory=dict)

    @property
    def reading(self) -> CorpusConfig:
        """How the text is read, except `unit`, which each recipe sets."""
        config: CorpusConfig
        config, _ = split_settings("default", self.settings, CorpusConfig, VocabularyConfig)
        return config

    @property
    def words_of(self) -> Path:
        """The first matrix, whose vocabulary all methods use."""
        return next(iter(self.matrices.values()))

    def run(self, texts: tuple[Path, ...]) -> Results:
        # Fail on missing libraries, test sets or vectors now, and not after hours of training.
        self._check_libraries()
        rules = EvaluationConfig(half=self.config.half, lowercase=self.reading.lowercase)
        sets = read_sets(self.config.data, rules, progress=self.options.progress).sets
        foreign = [Made(name, None, find_vectors(path)) for name, path in self.config.vectors]
        for each in foreign:
            _check_words(sets, open_vectors(each.path).vocabulary, str(each.path))

        self._take_text(texts)
        self._count()
        _check_words(sets, open_matrix(self.words_of).rows, "the vocabulary of the text")

        made = [Made(spec.method, spec.seed, self._train(spec)) for spec in list_trained(self.config)]
        made += foreign
        for each in made:
            job = EvaluateJob(each.path, self.out / "evaluation" / each.name, sets, rules)
            self.stages.do(f"evaluation {each.name}", job)

        ground = Ground(self.out, self.config, texts, self.matrices, self.stages.records, self.options.threads)
        results = gather_results(ground, made, sets)
        write_report(self.out, results, self.matrices.get("paper", self.words_of))
        return results

    def _check_libraries(self) -> None:
        """Raise MissingExtra if a library for the figures or the baselines is not installed."""
        if importlib.util.find_spec("matplotlib") is None:
            raise missing_extra("plots", "matplotlib", "plot")
        if set(self.config.methods) & set(WORD2VEC) and importlib.util.find_spec("gensim") is None:
            raise missing_extra("the methods sgns and cbow", "gensim", "baselines")

    def _take_text(self, texts: tuple[Path, ...]) -> None:
        """Set the texts to the files, or to a slice of them if `config.tokens` is set."""
        self.texts = texts
        if self.config.tokens is not None:
            job = SliceJob(texts, self.out / "corpus", self.config.tokens, self.reading)
            folder = self.stages.do("corpus", job)
            self.texts = (folder / TEXT,)
            self.settings |= {"encoding": "utf-8"}  # of the slice, whatever the encoding of the files

    def _count(self) -> None:
        """Count the text once for each different matrix; recipes with the same counts share one."""
        recipes = [method for method in self.config.methods if method in RECIPES] or ["default"]
        for recipe in recipes:
            name = matrix_name(recipe, self.settings)
            job = CountStage(self.texts, self.out / "matrices" / name, recipe, self.settings)
            self.matrices[recipe] = self.stages.do(f"matrix {name}", job)

    def _train(self, spec: VectorsSpec) -> Path:
        out = self.out / "vectors" / spec.name
        settings: Mapping[str, Any] = {"dim": self.config.dim, "seed": spec.seed}

        job: TrainStage | Word2vecJob
        if spec.method in WORD2VEC:
            job = Word2vecJob(self.texts, self.words_of, out, spec.method, {**self.settings, **settings})
        else:
            job = TrainStage(self.matrices[spec.method], out, spec.method, settings)
        return self.stages.do(f"vectors {spec.name}", job)


def _check_words(sets: Sequence[TestSet], vocabulary: Vocabulary, where: str) -> None:
    """Raise an error if a vocabulary has the words of no item of any set."""
    if not any(is_known(each, vocabulary) for each in sets):
        raise nothing_known((each.name for each in sets), where)
