"""Run an experiment from text to report, stage by stage; finished stages are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swivel.config import CorpusConfig, VocabularyConfig
from swivel.corpus import list_paths
from swivel.corpus.sources import is_pipe
from swivel.counts import open_matrix
from swivel.errors import ConfigError, missing_extra
from swivel.evaluation import EvaluationConfig, read_sets
from swivel.pipeline.reproduce.config import WORD2VEC, MethodVectors, ReproduceConfig, list_trained
from swivel.pipeline.reproduce.evaluations import check_words, evaluation_job
from swivel.pipeline.reproduce.experiment import Experiment
from swivel.pipeline.reproduce.report import HTML, MARKDOWN, RESULTS, write_report
from swivel.pipeline.reproduce.results import Results, gather_results
from swivel.pipeline.reproduce.stages import MEASURES, Stages
from swivel.pipeline.reproduce.subprocess import Runner, run_in_process
from swivel.pipeline.settings import split_settings
from swivel.reports.document import FIGURES
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.storage import hold_folder
from swivel.storage.overlap import refuse_overlap
from swivel.vectors.formats import find_vectors, open_vectors

# What an experiment writes in its folder, besides the vectors of each method.
OUTPUTS = ("corpus", "matrices", "evaluation", FIGURES, MEASURES, RESULTS, MARKDOWN, HTML)


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
    texts
        Files, folders or glob patterns.
    out
        Folder for the report and all stages.
    config
        Methods, dimensions, seeds and test sets.
    options
        Threads, memory, progress and overwriting.
    runner
        Function that runs a stage; by default each stage runs in a separate process.
    settings
        Fields of CorpusConfig and VocabularyConfig; by default those of each recipe.
    """
    config = config or ReproduceConfig()
    options = options or RunOptions()
    split_settings("default", settings, CorpusConfig, VocabularyConfig)  # Check the settings before any work.
    files = _list_texts(texts, out)
    trained = list_trained(config, Path(out) / "vectors")
    outputs = [Path(out) / name for name in OUTPUTS] + [each.path for each in trained]
    refuse_overlap(outputs, [*files, config.data, *(find_vectors(path) for _, path in config.vectors)])

    with hold_folder(out):
        experiment = Experiment(Path(out), config, dict(settings), files, Stages(Path(out), options, runner))

        # Fail on missing libraries, test sets or vectors now, and not after hours of training.
        check_libraries("reproducing")
        _check_extras(config.methods)
        rules = EvaluationConfig(half=config.half, lowercase=experiment.reading.lowercase)
        sets = read_sets(config.data, rules, progress=options.progress).sets
        foreign = [MethodVectors(name, None, find_vectors(path)) for name, path in config.vectors]
        for each in foreign:
            check_words(sets, open_vectors(each.path).vocabulary, str(each.path))

        experiment.take_text()
        experiment.count()
        check_words(sets, open_matrix(experiment.first_matrix).rows, "the vocabulary of the text")

        for each in trained:
            experiment.train(each)
        made = trained + foreign
        for each in made:
            job = evaluation_job(each.path, experiment.out / "evaluation" / each.name, sets, rules)
            experiment.stages.do(f"evaluation {each.name}", job)

        results = gather_results(experiment, made, sets)
        write_report(experiment.out, results, experiment.matrices.get("paper", experiment.first_matrix))
        return results


def _list_texts(texts: str | Path | Iterable[str | Path], out: str | Path) -> list[Path]:
    files = list_paths(texts, outside=out)
    if any(map(is_pipe, files)):
        raise ConfigError("standard input and pipes cannot be read several times; save the text to a file")
    return files


def _check_extras(methods: Iterable[str]) -> None:
    """Raise MissingExtra if a library for the figures or the baselines is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra("plots", "matplotlib", "plot")
    if set(methods) & set(WORD2VEC) and importlib.util.find_spec("gensim") is None:
        raise missing_extra("the methods sgns and cbow", "gensim", "baselines")
