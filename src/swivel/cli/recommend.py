"""`swivel recommend`: the best columns for rows of a table."""

from __future__ import annotations

from typing import Any

import click

from swivel.cli.main import cli, open_vectors
from swivel.cli.options import Command, Decimal, config_options, count_option, refuse_idle_options
from swivel.cli.render import draw_table, show
from swivel.cli.terminal import print_result
from swivel.counts.importers.import_config import ImportConfig
from swivel.errors import ConfigError
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions

matrix_option = click.option(
    "--matrix", metavar="DIR", help="the matrix that the vectors were trained on  [default: that of the same run]"
)
table_options = config_options(ImportConfig, only=("fields", "header"))


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("rows", nargs=-1, metavar="[ROW]...")
@matrix_option
@click.option("--for", "source", metavar="FILE", help="counts of new rows, in any format of swivel import")
@table_options
@count_option()
@click.option("--with-seen", is_flag=True, help="also columns that a row has already")
@click.option("--popularity", type=Decimal(), help="factor of a column's log sum in the ranking  [default: by table]")
def recommend(
    vectors: str,
    rows: tuple[str, ...],
    matrix: str | None,
    source: str | None,
    count: int,
    with_seen: bool,
    popularity: float | None,
    options: RunOptions,
    **settings: Any,
) -> None:
    """The best columns for rows of a table: products for users, tags for packages.

    Known rows need the matrix, which tells what they have; new rows come from a file.

    \b
    swivel recommend work/vectors alice                       with work/matrix beside them
    swivel recommend vectors alice --matrix matrix
    swivel recommend vectors --for new.csv --header
    """
    if source is None:
        refuse_idle_options(lambda name: name in ("fields", "header"), where="without --for")
    check_libraries("recommending")
    from swivel.counts.importers import import_counts
    from swivel.recommender import Recommender

    recommender = Recommender(open_vectors(vectors), matrix, popularity=popularity)
    if not rows and source is None:
        raise ConfigError("rows are missing: name some, or pass source=FILE with the counts of new ones")
    if rows and recommender.matrix is None and not with_seen:
        raise ConfigError("known rows need the matrix, to leave out what they have: pass matrix, or with_seen=True")

    answers = {row: recommender.recommend(row, count, exclude_seen=not with_seen) for row in rows}
    if source is not None:
        table = import_counts(source, options=options, **settings)
        answers |= recommender.recommend_table(table, count, exclude_seen=not with_seen)

    def draw() -> None:
        for number, (name, found) in enumerate(answers.items()):
            print_result(*([""] if number else []), f"{name}:")
            draw_table(
                ["column", "score", "because of"],
                [[each.column, f"{each.score:.2f}", ", ".join(each.because_of)] for each in found],
            )

    show({name: [each._asdict() for each in found] for name, found in answers.items()}, draw)
