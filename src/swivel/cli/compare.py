"""`swivel compare`: which words differ most between two models."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from swivel.cli.main import cli, open_vectors
from swivel.cli.options import Command, PositiveInteger, config_options
from swivel.cli.render import align_table, show
from swivel.cli.terminal import print_result, shown
from swivel.runtime.options import RunOptions
from swivel.storage import read_manifest
from swivel.storage.overlap import refuse_overlap
from swivel.vectors import Vectors, comparison
from swivel.vectors.formats import find_vectors

MIN_WIDTH = 40
SHOWN_NEIGHBORS = 8


@cli.command(cls=Command)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--noise-baseline", metavar="C", help="a second training of A's text with another seed: what is only noise"
)
@click.option("-o", "--output", metavar="FILE", help="write every word compared here: .tsv or .json")
@click.option("-n", "--count", type=PositiveInteger(), default=20, show_default=True, help="how many words to show")
@config_options(comparison.CompareConfig)
def compare(
    before: str,
    after: str,
    noise_baseline: str | None,
    output: str | None,
    count: int,
    options: RunOptions,
    **settings: Any,
) -> None:
    """Which words that A and B share moved most, with their neighbors in A and in B.

    Every training turns its space its own way, so A is first rotated onto B by all the words they share. Words are
    ranked by how far their cosine lies below that of words as common as they are. With --noise-baseline C the table
    says, too, how alike words as common are in two trainings of one text.

    \b
    swivel compare 1900s/vectors 1990s/vectors
    swivel compare 1900s/vectors 1990s/vectors --noise-baseline 1900s/again -o moved.tsv
    """
    if output is not None:
        comparison.check_ending(Path(output))
        refuse_overlap([Path(output)], [find_vectors(path) for path in (before, after, noise_baseline) if path])

    models = [open_vectors(path) for path in (before, after, noise_baseline) if path]
    found = comparison.compare(models[0], models[1], noise_baseline=models[2] if noise_baseline else None, **settings)
    if output is not None:
        found.write(output)

    show(found.to_dict(count), lambda: draw_comparison(found, count))
    remark = describe_training(models)
    if remark:
        options.progress.message(remark)


def draw_comparison(found: comparison.ModelComparison, count: int) -> None:
    """Print a summary, then the words that differ most, each with its neighbors in both models."""
    print_result(f"{len(found):,} words compared: {_agreement(found.whole)}")
    if found.noise_baseline is not None:
        print_result(f"two trainings of one text: {_agreement(found.noise_baseline)}")

    words = found.words[:count]
    header = ["word", "cosine", "usual", "z", *(["same text", "z"] if found.noise_baseline else [])]
    first, *lines = align_table(header, [_cells(word) for word in words])
    print_result("", first)
    for word, line in zip(words, lines, strict=True):
        neighbors_before = _clip("    A: " + ", ".join(word.before[:SHOWN_NEIGHBORS]))
        neighbors_after = _clip("    B: " + ", ".join(word.after[:SHOWN_NEIGHBORS]))
        print_result(line, neighbors_before, neighbors_after)


def _agreement(agreement: comparison.Agreement) -> str:
    return f"mean cosine {agreement.cosine:.3f}, {agreement.overlap:.0%} of their neighbors shared"


def _cells(word: comparison.Word) -> list[str]:
    cells = [word.word, f"{word.cosine:.3f}", f"{word.usual:.3f}", f"{word.rank_z:.1f}"]
    if word.same_text is not None and word.moved_z is not None:
        cells += [f"{word.same_text:.3f}", f"{word.moved_z:.1f}"]
    return cells


def _clip(text: str) -> str:
    """Return a line that fits into the terminal."""
    text = shown(text)
    width = max(shutil.get_terminal_size((110, 24)).columns, MIN_WIDTH)
    return text if len(text) <= width else text[: width - 3].rstrip(", ") + "..."


def describe_training(models: Sequence[Vectors]) -> str | None:
    """Return a remark on how the models were made, or on how to make a noise baseline."""
    before, after, *baseline = map(_matrix_of, models)
    if baseline:
        is_other = before is not None and baseline[0] is not None and before != baseline[0]
        text = "the noise baseline was trained on other counts than A: it shows more than the noise of training"
        return text if is_other else None

    if before is not None and before == after:
        return "A and B were trained on the same counts: what differs here is the noise of training"
    return None if before is None else "for a noise baseline, train A again with another --seed: --noise-baseline C"


def _matrix_of(model: Vectors) -> str | None:
    """Return the fingerprint of the matrix that vectors were trained on, or None if it is not known."""
    return None if model.path is None else read_manifest(model.path).inputs.get("matrix")
