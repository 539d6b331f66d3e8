"""Printing of results: tables, neighbors, facts and the demonstration."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swivel.cli.terminal import print_json, print_result, quote, shown

if TYPE_CHECKING:
    from swivel.vectors import Guess, Neighbor

BAR_WIDTH = 20


def show(data: Any, draw: Callable[[], None]) -> None:
    """Print the result of the running command as JSON if it has the flag --json, else as text."""
    parameters = click.get_current_context().params
    try:
        if parameters["json"]:
            print_json(data)
        else:
            draw()
    except OSError as error:
        # If standard output has no reader, a result that is in a folder or file is not lost.
        is_kept = parameters.get("output") or parameters.get("file")
        if not (is_kept and error.errno in (errno.EPIPE, errno.EBADF)):
            raise


def align_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column to the left, the others, which are numbers, to the right."""
    # Widths are those of the escaped cells: a control character would shift the columns.
    rows = [list(map(shown, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for first, *numbers in (header, *rows):
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def draw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print_result(*align_table(header, rows))


def draw_neighbors(answers: Mapping[str, Sequence[Neighbor]], guesses: Mapping[str, Guess] | None = None) -> None:
    """Print answers under their questions; a question whose vector was guessed is marked."""
    for question, neighbors in answers.items():
        guess = (guesses or {}).get(question)
        mark = f"  (a guess from the spelling; expected cosine {guess.expected_cosine:.2f})" if guess else ""
        print_result(f"{question}{mark}")
        if not neighbors:
            print_result("  (no neighbors)")
        for neighbor in neighbors:
            print_result(f"  {neighbor.similarity:6.3f}  {neighbor.token}")


def draw_facts(data: Mapping[str, Any], indent: str = "") -> None:
    """Print nested facts, one per line."""
    for name, value in data.items():
        if isinstance(value, dict):
            print_result(f"{indent}{name}:")
            draw_facts(value, indent + "  ")
        else:
            print_result(f"{indent}{name}: {_fact(value)}")


def _fact(value: Any) -> str:
    """Return one fact as text; of a long list of records (the losses), only the first and the last."""
    match value:
        case None:
            return "-"
        case dict():
            return ", ".join(f"{name} {_fact(inner)}" for name, inner in value.items())
        case [dict(), *_]:
            return f"{_fact(value[0])} at first; {_fact(value[-1])} after {len(value)}"
        case list():
            return ", ".join(map(_fact, value))
        case float():
            return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def draw_demo(result: Mapping[str, Any]) -> None:
    """Print the results of the demonstration."""
    size = f"{result['words']:,} words, {result['cells']:,} observed cells"
    print_result("", f"{size}: vectors in {result['seconds']:.0f} seconds", "", "Which words are near?", "")
    for word, neighbors in result["neighbors"].items():
        print_result(f"{word:>9}  {', '.join(neighbor.token for neighbor in neighbors)}")

    print_result("", "And what is missing?", "")
    for question, answer in result["analogies"].items():
        print_result(f"{question:>34} is to {answer}")

    print_result("", "The same with many words, and how often the answer is right:", "")
    _, right, total = zip(*result["sections"], strict=True)
    for name, correct, questions in [*result["sections"], ("all", sum(right), sum(total))]:
        share = correct / questions
        bar = "#" * round(BAR_WIDTH * share)
        print_result(f"  {name:>14}  {bar:.<{BAR_WIDTH}}  {share:4.0%} of {questions:,}")
    print_result("")


def next_command(verb: str, path: Path, *words: str) -> str:
    """Return a command that can be pasted into a shell.

    >>> next_command("nearest", Path("my work/vectors"), "tuxedo")
    "next: swivel nearest 'my work/vectors' tuxedo"
    """
    return "next: " + " ".join(map(quote, [name_program(), verb, str(path), *words]))


def name_program() -> str:
    """Return the name of this program, or its path if the shell would find another program of that name."""
    # In a virtual environment that is not activated, only the path of the program works.
    typed = Path(sys.argv[0])
    usual = shutil.which("swivel")
    if typed.name != "swivel" or not typed.is_file() or (usual and typed.samefile(usual)):
        return "swivel"
    return str(typed)
