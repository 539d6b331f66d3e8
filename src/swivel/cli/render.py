"""Printing of results: tables, neighbors, facts and the demonstration."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from swivel.evaluation import Comparison, Report
    from swivel.pipeline.demo import Demo
    from swivel.vectors import Neighbour

BAR_WIDTH = 20


def show(data: Any, as_json: bool, draw: Callable[[], None]) -> None:
    """Print a result as JSON or as text."""
    if as_json:
        click.echo(json.dumps(data, ensure_ascii=False))
    else:
        draw()


def draw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, numbers to the right."""
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def draw_evaluation(
    report: Report, compared: Mapping[str, Sequence[Comparison]], *, markdown: bool, sections: bool
) -> None:
    """Print an evaluation, and below it the comparisons with other vectors."""
    from swivel.evaluation import COMPARISON_HEADER, TABLE_HEADER, draw_markdown, tabulate_comparisons

    def draw(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if markdown:
            click.echo(draw_markdown(header, rows))
        else:
            draw_table(header, rows)

    draw(TABLE_HEADER, report.table(sections=sections))
    for name, comparisons in compared.items():
        click.echo(f"\nagainst {name}:\n")
        draw(COMPARISON_HEADER, tabulate_comparisons(comparisons))


def draw_neighbours(answers: Mapping[str, Sequence[Neighbour]]) -> None:
    """Print answers under their questions."""
    for question, found in answers.items():
        click.echo(question)
        if not found:
            click.echo("  (no neighbours: it never co-occurred with anything)")
        for neighbour in found:
            click.echo(f"  {neighbour.similarity:6.3f}  {neighbour.token}")


def draw_facts(data: Mapping[str, Any], indent: str = "") -> None:
    """Print nested facts, one per line."""
    for name, value in data.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{name}:")
            draw_facts(value, indent + "  ")
        else:
            click.echo(f"{indent}{name}: {_fact(value)}")


def _fact(value: Any) -> str:
    """Return one fact as text; of a long list of records (the losses), only the first and the last."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(inner)}" for name, inner in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{_fact(value[0])} at first; {_fact(value[-1])} after {len(value)}"
    if isinstance(value, list):
        return ", ".join(map(_fact, value))
    if value is None:
        return "-"
    return f"{value:,}" if type(value) is int else f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_demo(result: Demo) -> None:
    """Print the results of the demonstration."""
    click.echo(f"\n{result.words:,} words, {result.cells:,} observed cells: vectors in {result.seconds:.0f} seconds")
    click.echo("\nWhich words are near?\n")
    _draw_pairs((word, ", ".join(neighbour.token for neighbour in found)) for word, found in result.neighbours.items())
    click.echo("\nAnd what is missing?\n")
    _draw_pairs(result.analogies.items(), arrow=" is to ")
    click.echo("\nThe same with many words, and how often the answer is right:\n")
    for name, right, asked in [*result.sections, result.total]:
        share = right / asked
        click.echo(f"  {name:>14}  {draw_bar(share)}  {share:4.0%} of {asked:,}")
    click.echo()


def _draw_pairs(pairs: Iterable[tuple[str, str]], arrow: str = "  ") -> None:
    listed = list(pairs)
    width = max(len(left) for left, _ in listed) + 2
    for left, right in listed:
        click.echo(f"{left:>{width}}{arrow}{right}")


def draw_bar(share: float) -> str:
    """Return a share as a bar of text.

    >>> draw_bar(0.5)
    '##########..........'
    """
    full = round(BAR_WIDTH * share)
    return "#" * full + "." * (BAR_WIDTH - full)


def next_command(verb: str, path: Path, *words: str) -> str:
    """Return a command that can be pasted into a shell.

    >>> next_command("nearest", Path("my work/vectors"), "tuxedo")
    "next: swivel nearest 'my work/vectors' tuxedo"
    """
    return "next: " + shlex.join([name_program(), verb, str(path), *words])


def name_program() -> str:
    """Return the name of this program, or its path if the shell would find another program of that name."""
    typed, found = Path(sys.argv[0]), shutil.which("swivel")
    if typed.name != "swivel" or not typed.is_file() or (found and typed.samefile(found)):
        return "swivel"
    return str(typed)
