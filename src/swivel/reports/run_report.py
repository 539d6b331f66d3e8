"""The report of a finished run: `report.html`, one self-contained page.

`summarize_run` computes the numbers, of common words only, so that it takes about a second for a run of any size.
`compose_run` arranges them in a page. An error in the report does not make a finished run fail.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.errors import MissingExtra
from swivel.evaluation import EvaluationConfig, SetResult
from swivel.evaluation.datasets import read_bundled
from swivel.evaluation.scores import score_analogies
from swivel.reports.html import (
    write_details,
    write_facts,
    write_heading,
    write_page,
    write_paragraph,
    write_picture,
    write_table,
)
from swivel.reports.plots import draw_figure, plot_epochs, plot_map
from swivel.runtime.numbers import plural
from swivel.runtime.progress import format_rate
from swivel.runtime.resources import count_cores
from swivel.storage.files import write_file
from swivel.vectors import Neighbor, Vectors, VectorTable
from swivel.vectors.projection import (
    choose_example,
    compute_umap,
    fit_to_frame,
    is_plain_word,
    reduce_vectors,
    weigh_labels,
)
from swivel.vectors.search import scale_to_unit

Losses = list[dict[str, float]]  # `mean`, `observed` and `unobserved` of each epoch
BANDS = ("common", "middling", "rare")
WORDS_PER_BAND = 5
NEIGHBORS = 8
SKIPPED = 400  # the most common words are function words, whose neighbors are not informative
MAX_CANDIDATES = 200_000  # neighbors are searched among this many most common words, and the chosen words

MAX_ANSWERS = 30_000  # analogies are answered with this many most common words
MAP_WORDS = 120
MAP_CANDIDATES = 3_000

Svgs = Mapping[str, bytes]  # the figures by name; empty without matplotlib
NOTHING = "–"
NO_FIGURES = (
    "This page has no figures, only their numbers: figures need matplotlib. `pip install 'swivel-embeddings[plot]'`, "
    "remove this file, and run the same command again to write it with figures."
)
LOSSES = (
    "Mean loss of a cell per epoch. Training minimizes the loss of all cells together. The loss of an observed cell is "
    "the squared distance from its PMI, weighted by f(x); that of an unobserved cell is the soft hinge, which keeps "
    "products low."
)
MAP = (
    "The most informative of the common {0}s; similar {0}s are near each other (UMAP). `swivel plot map` and "
    "`swivel explore` show all {0}s."
)


class Asked(NamedTuple):
    """A word (or a row of a table), its frequency and the band it was chosen from, and its nearest neighbors."""

    band: str
    word: str
    frequency: float
    nearest: tuple[Neighbor, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What the report of a run shows."""

    name: str
    vectors: Vectors
    matrix: Matrix
    asked: tuple[Asked, ...]
    analogies: SetResult | None  # none for a table, whose labels are no words
    epochs: Losses  # none if the vectors were not trained by Swivel
    training_seconds: float  # including earlier calls that were interrupted

    @property
    def noun(self) -> str:
        """What a vector is called: a word of a text, or a row of a table."""
        return "word" if self.matrix.columns_per_row else "row"


def summarize_run(vectors: Vectors, matrix: Matrix, folder: Path | None = None) -> RunSummary:
    """Return what the report shows of vectors, which were trained on `matrix` and are, or will be, in `folder`."""
    path = (folder or vectors.path or Path("vectors")).resolve()
    analogies = None
    if matrix.columns_per_row:
        analogies = score_analogies(vectors, read_bundled(), EvaluationConfig(top=MAX_ANSWERS, draws=0))

    return RunSummary(
        name=path.parent.name if path.name == "vectors" else path.name,
        vectors=vectors,
        matrix=matrix,
        asked=ask_words(vectors),
        analogies=analogies,
        epochs=vectors.facts.get("losses", []),
        training_seconds=vectors.facts.get("training_seconds", 0.0),
    )


def choose_map(vectors: Vectors) -> tuple[list[str], NDArray[np.float32]]:
    """Return the most informative of the common words, and their principal components."""
    common = range(min(SKIPPED, len(vectors) // 20), min(len(vectors), MAP_CANDIDATES))
    plain = [number for number in common if is_plain_word(vectors.vocabulary[number])]
    pool = np.array(plain if len(plain) >= MAP_WORDS else common, np.int64)
    weights = weigh_labels(vectors, pool.tolist())
    # In the order of frequency, because labels are placed in the order of the points.
    best = np.sort(np.argsort(-weights, kind="stable")[:MAP_WORDS])
    ids = pool[best[weights[best] > 0]]
    components = reduce_vectors(scale_to_unit(vectors.vectors[ids])) if len(ids) else np.empty((0, 2), np.float32)
    return [vectors.vocabulary[number] for number in ids.tolist()], components


def choose_words(vectors: Vectors) -> list[tuple[str, int]]:
    """Return some common, middling and rare words: pairs of a band and the id of a word.

    >>> words = Vocabulary([f"word{n}" for n in range(1000)])
    >>> vectors = Vectors(VectorTable(words, np.ones((1000, 2), np.float32)))
    >>> [number for band, number in choose_words(vectors) if band == "middling"]
    [402, 442, 482, 522, 562]
    """
    size = len(vectors)
    start = min(SKIPPED, size // 20)
    bounds = {
        "common": (start, max(start + WORDS_PER_BAND, int(0.1 * size))),
        "middling": (int(0.4 * size), int(0.6 * size)),
        "rare": (int(0.9 * size), size),
    }

    # In a small vocabulary the bands overlap; a word belongs to the first one.
    chosen: dict[int, str] = {}
    for band, (low, high) in bounds.items():
        numbers = [number for number in range(low, min(high, size)) if number not in chosen]
        plain = [number for number in numbers if is_plain_word(vectors.vocabulary[number])]
        pool = plain if len(plain) >= WORDS_PER_BAND else numbers
        for part in np.array_split(np.array(pool, np.int64), WORDS_PER_BAND):
            if len(part):
                chosen[choose_example(vectors, part.tolist())] = band

    return [(band, number) for number, band in chosen.items()]


def ask_words(vectors: Vectors) -> tuple[Asked, ...]:
    """Return common, middling and rare words with their nearest neighbors."""
    chosen = choose_words(vectors)
    words = [vectors.vocabulary[number] for _, number in chosen]
    # The count of each word in the text, else the sum of its row; None if neither is known.
    counts = vectors.vocabulary.counts
    frequencies = counts if counts.any() else vectors.row_sums

    candidates = vectors
    if len(vectors) > MAX_CANDIDATES:  # Normalizing millions of vectors would take longer than the rest of the report.
        ids = np.unique(np.concatenate([np.arange(MAX_CANDIDATES), [number for _, number in chosen]]))
        tokens = [vectors.vocabulary[number] for number in ids.tolist()]
        candidates = Vectors(VectorTable(Vocabulary(tokens), vectors.vectors[ids]))
    neighbors = candidates.nearest_each(words, count=NEIGHBORS) if words else []

    asked = []
    for (band, number), word, nearest in zip(chosen, words, neighbors, strict=True):
        frequency = 0.0 if frequencies is None else float(frequencies[number])
        asked.append(Asked(band, word, frequency, tuple(nearest)))
    return tuple(asked)


def write_report(
    vectors: Vectors | str | Path, matrix: Matrix, out: str | Path, seconds: Mapping[str, float] | None = None
) -> RunSummary:
    """Write the report of a finished run as an HTML page, and return its numbers.

    `matrix` is that of the training, `seconds` are those of the stages that ran in this call, and their `total`.

    >>> import swivel, tempfile
    >>> matrix = swivel.count(["tea milk", "milk sugar", "tea sugar"], min_count=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vectors = swivel.train(matrix, Path(folder) / "vectors", dim=2, epochs=2)
    ...     run = write_report(Path(folder) / "vectors", matrix, Path(folder) / "report.html")
    >>> len(run.epochs), [asked.word for asked in run.asked]
    (2, ['milk', 'sugar', 'tea'])
    """
    loaded = Vectors.load(vectors) if isinstance(vectors, (str, Path)) else vectors
    run = summarize_run(loaded, matrix)
    write_file(Path(out), compose_run(run, draw_figures(*choose_map(loaded), run.epochs), seconds or {}).encode())
    return run


def draw_figures(words: Sequence[str], components: NDArray[np.float32], epochs: Losses) -> Svgs:
    """Return the figures of which there are numbers, as SVG; an empty dictionary if matplotlib is not installed.

    The map has the words of `choose_map`.
    """
    # SVG, because the style sheet of the page gives its lines and letters the colors of light and dark mode.
    svgs = {}
    try:
        if words:
            points = fit_to_frame(compute_umap(components))
            svgs["map"] = draw_figure(plot_map(words, points, size=(7.0, 4.6)), "svg")
        if len(epochs) > 1:  # a single point shows less than the table
            svgs["epochs"] = draw_figure(plot_epochs(epochs), "svg")
    except MissingExtra:
        return {}
    return svgs


def compose_run(run: RunSummary, svgs: Svgs, seconds: Mapping[str, float]) -> str:
    """Return the page of a run, with the seconds of the stages that ran in this call."""
    # What readers look at first comes first: the words, then how well they were learned, then how.
    parts = [] if svgs else [write_paragraph(NO_FIGURES)]
    parts += _write_neighbors(run)
    if "map" in svgs:
        parts += [write_heading("Map"), write_picture("map", MAP.format(run.noun), svgs["map"])]
    parts += _write_evaluation(run)
    parts += _write_losses(run, svgs)
    parts += _write_times(run, seconds)
    parts += _write_settings(run)
    return write_page(f"Swivel: {run.name}", _describe(run), parts)


def _describe(run: RunSummary) -> str:
    rows, columns = run.matrix.shape
    cells = run.matrix.cell_count
    text = f"{rows:,} rows × {columns:,} columns, {cells:,} cells observed; vectors of {run.vectors.dim} dimensions"
    if not run.epochs:
        return text + "."

    return f"{text}, trained in {format_seconds(run.training_seconds)} ({plural(len(run.epochs), 'epoch')})."


def _write_losses(run: RunSummary, svgs: Svgs) -> Iterator[str]:
    if not run.epochs:
        return

    yield write_heading("Losses")
    first = run.epochs[0]
    last = run.epochs[-1]
    if len(run.epochs) > 1:
        yield write_paragraph(
            f"From the first epoch to the last: all cells {first['mean']:.4f} to {last['mean']:.4f}, observed "
            f"{first['observed']:.3f} to {last['observed']:.3f}, "
            f"unobserved {first['unobserved']:.4f} to {last['unobserved']:.4f}."
        )

    rows = [
        (str(number), f"{loss['mean']:.5f}", f"{loss['observed']:.4f}", f"{loss['unobserved']:.5f}")
        for number, loss in enumerate(run.epochs, 1)
    ]
    header = ("epoch", "all cells", "observed", "unobserved")
    table = write_table(header, rows)
    if "epochs" in svgs:
        yield write_picture("epochs", LOSSES, svgs["epochs"])
        yield write_details("The numbers", table)
    else:
        yield write_paragraph(LOSSES)
        yield table


def _write_neighbors(run: RunSummary) -> Iterator[str]:
    yield write_heading("Neighbors")
    if not run.asked:
        yield write_paragraph("The vocabulary is empty.")
        return
    yield write_paragraph(
        f"Nearest neighbors of common, middling and rare {run.noun}s, with the cosines of the first and the last."
    )

    rows = []
    for band in BANDS:
        words = [asked for asked in run.asked if asked.band == band]
        for index, asked in enumerate(words):
            nearest = ", ".join(near.token for near in asked.nearest) or "none: it never co-occurred with anything"
            seen = f"{asked.frequency:,.0f}" if asked.frequency else NOTHING
            ends = asked.nearest[:: max(len(asked.nearest) - 1, 1)]  # the nearest and the last one
            cosines = " to ".join(f"{near.similarity:.2f}" for near in ends)
            rows.append((band if index == 0 else "", asked.word, seen, nearest, cosines))

    yield write_table(("", run.noun, "seen" if run.noun == "word" else "sum", "nearest", "cosines"), rows, is_text=True)


def _write_evaluation(run: RunSummary) -> Iterator[str]:
    if run.analogies is None:
        return
    yield write_heading("Evaluation")
    command = "`swivel evaluate` uses the eight test sets of the paper, or your own."
    if not run.analogies.known:
        yield write_paragraph(f"None of the bundled questions about common English words can be asked. {command}")
        return

    yield write_paragraph(
        f"Share of the bundled analogies, of which all words are known, with the right answer. {command}"
    )
    rows = []
    for section in (*(each for each in run.analogies.sections if each.known), run.analogies):
        name = "all" if section is run.analogies else section.name
        rows.append((name, f"{section.known_only:.0%}", f"{section.known:,}", f"{section.total:,}"))
    yield write_table(("analogies", "right", "known", "of"), rows)


def _write_times(run: RunSummary, seconds: Mapping[str, float]) -> Iterator[str]:
    yield write_heading("Time")

    stages = [(name, spent, "") for name, spent in seconds.items() if name not in ("training", "total")]
    if run.epochs:
        stages.append(("training", run.training_seconds, _speed(run)))
    if "total" in seconds:
        stages.append(("this call, from its start to this page", seconds["total"], ""))

    rows = [(name, format_seconds(spent), note) for name, spent, note in stages]
    yield write_table(("stage", "time", ""), rows)

    if not seconds.keys() & {"reading", "counting"}:
        yield write_paragraph("The counts existed already, so their stages have no times.")


def _speed(run: RunSummary) -> str:
    """Return the training speed and what it was measured on, as "1.2 G cells/s, torch cuda float32"."""
    rows, columns = run.matrix.shape
    # Every cell counts, observed or not: an epoch visits all of them.
    speed = float(rows) * columns * len(run.epochs) / max(run.training_seconds, 1e-9)

    plan = run.vectors.facts.get("plan", {})
    names = [str(plan[name]) for name in ("backend", "device", "dtype") if plan.get(name)]
    return f"{format_rate(speed, 'cells')}, {' '.join(dict.fromkeys(names))}"


def format_seconds(seconds: float) -> str:
    """Return a duration as text.

    >>> format_seconds(0.126), format_seconds(42), format_seconds(331), format_seconds(7320)
    ('0.13 s', '42.0 s', '5 min 31 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _write_settings(run: RunSummary) -> Iterator[str]:
    yield write_heading("Settings")
    facts = run.vectors.facts
    stages = {**run.vectors.settings, "chosen for this run": facts.get("plan", {})}
    for stage, settings in stages.items():
        if settings:
            yield write_details(stage, write_facts(settings))

    machine = {
        "swivel-embeddings": facts.get("library", __version__),
        "page written by": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} on {platform.machine()}",
        "cores": count_cores(),
        "counts, all together": run.matrix.total,
    }
    if run.matrix.suppressed_below is not None:
        machine["counts are suppressed below"] = run.matrix.suppressed_below
    yield write_details("machine and versions", write_facts(machine))
