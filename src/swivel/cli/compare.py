"""`swivel compare`: which words differ most between two models."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swivel.cli.main import cli, open_vectors, take_options
from swivel.cli.options import Command, output_options
from swivel.cli.render import show
from swivel.config import TrainConfig, VectorsConfig, result_settings, stage_config

if TYPE_CHECKING:
    from swivel.vectors import Vectors
    from swivel.vectors.compare import Agreement, Drift, Word

LEAST_WIDTH, SHOWN_NEIGHBOURS = 40, 8


@cli.command(cls=Command, short_help="Which words differ most between two models.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--yardstick", metavar="C", help="a second training of A's text with another seed: what is only noise")
@click.option("-o", "--output", metavar="FILE", help="write every word compared here: .tsv or .json")
@click.option("-n", "--count", type=click.IntRange(1), default=20, show_default=True, help="how many words to show")
@click.option("--top", default=20_000, show_default=True, help="compare the N commonest of the shared words")
@click.option(
    "--min-count", default=20, show_default=True, help="leave out words seen fewer times in either text, where known"
)
@click.option("--neighbours", default=10, show_default=True, help="neighbours of a word, among the words compared")
@output_options
def compare(before: str, after: str, yardstick: str | None, output: str | None, count: int, **rest: Any) -> None:
    """Which words that A and B share moved most, with their neighbours in A and in B.

    Every training turns its space its own way, so A is first rotated onto B by all the words they share. Words are
    ranked by how far their cosine lies below that of words as common as they are. With --yardstick C the table says,
    too, how alike words as common are in two trainings of one text.

    \b
    swivel compare 1900s/vectors 1990s/vectors
    swivel compare 1900s/vectors 1990s/vectors --yardstick 1900s/again -o moved.tsv
    """
    from swivel.vectors import compare as drift

    options, as_json, settings = take_options(rest)
    if output is not None:
        drift.check_ending(Path(output))
    models = [open_vectors(path) for path in (before, after, *([yardstick] if yardstick else []))]
    found = drift.compare(models[0], models[1], yardstick=models[2] if yardstick else None, **settings)
    if output is not None:
        found.write(output)
    show(found.to_dict(count), as_json, lambda: draw_drift(found, count))
    for remark in remarks(models):
        options.progress.message(remark)


def draw_drift(found: Drift, count: int) -> None:
    """Print a summary, then the words that differ most, each with its neighbors in both models."""
    click.echo(f"{len(found):,} words compared: {_agreement(found.whole)}")
    if found.yardstick is not None:
        click.echo(f"two trainings of one text: {_agreement(found.yardstick)}")
    words = found.words[:count]
    width = max(len("word"), *(len(word.word) for word in words))
    lines = [_cells(word) for word in words]
    header = ["cosine", "usual", "z", *(["same text", "z"] if found.yardstick else [])]
    widths = [max(len(line[n]) for line in [header, *lines]) for n in range(len(header))]
    click.echo("\n" + _line("word".ljust(width), header, widths))
    for word, line in zip(words, lines, strict=True):
        click.echo(_line(word.word.ljust(width), line, widths))
        click.echo(_clip("    A: " + ", ".join(word.before[:SHOWN_NEIGHBOURS])))
        click.echo(_clip("    B: " + ", ".join(word.after[:SHOWN_NEIGHBOURS])))


def _agreement(agreement: Agreement) -> str:
    return f"mean cosine {agreement.cosine:.3f}, {agreement.overlap:.0%} of their neighbours shared"


def _cells(word: Word) -> list[str]:
    own = [f"{word.cosine:.3f}", f"{word.usual:.3f}", f"{word.rank_z:.1f}"]
    if word.same_text is None or word.moved_z is None:
        return own
    return [*own, f"{word.same_text:.3f}", f"{word.moved_z:.1f}"]


def _line(word: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([word, *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])


def _clip(text: str) -> str:
    """Return a line that fits into the terminal."""
    width = max(shutil.get_terminal_size((110, 24)).columns, LEAST_WIDTH)
    return text if len(text) <= width else text[: width - 3].rstrip(", ") + "..."


def remarks(models: Sequence[Vectors]) -> list[str]:
    """Return remarks on how the two models were made, and the command that makes a noise baseline."""
    before, after, *third = (matrix_of(model) for model in models)
    if third:
        is_other = before is not None and third[0] is not None and before != third[0]
        return ["the yardstick was trained on other counts than A: it shows more than the noise of training"] * is_other
    if before is not None and before == after:
        return ["A and B were trained on the same counts: what differs here is the noise of training"]
    command = second_training(models[0])
    return [f"for a yardstick: {command}, then --yardstick"] if command else []


def matrix_of(model: Vectors) -> str | None:
    """Return the fingerprint of the matrix that vectors were trained on, or None if it is not known."""
    from swivel.storage import read_manifest

    return None if model.path is None else read_manifest(model.path).inputs.get("matrix")


def second_training(model: Vectors) -> str | None:
    """Return the command that trains the same model with another seed, or None if its settings are not known."""
    from swivel.storage import MANIFEST, read_manifest

    if model.path is None:
        return None
    config, beside = read_manifest(model.path).config, model.path.parent / "matrix"
    if not {"train", "vectors"} <= set(config):
        return None
    matrix = str(beside) if (beside / MANIFEST).exists() else "MATRIX"
    flags = []
    for stage, name in ((TrainConfig, "train"), (VectorsConfig, "vectors")):
        usual = result_settings(stage_config(stage, "default"))
        changed = {key: value for key, value in config[name].items() if value is not None and value != usual.get(key)}
        flags += [part for key, value in changed.items() if key != "seed" for part in (_flag(key), str(value))]
    folder = str(model.path.parent / "second")
    return shlex.join(
        ["swivel", "train", matrix, "-o", folder, "--seed", str(config["train"].get("seed", 1) + 1), *flags]
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
