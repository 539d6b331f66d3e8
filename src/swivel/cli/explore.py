"""`swivel explore`: vectors in the browser."""

from __future__ import annotations

import webbrowser

import click

from swivel import explorer
from swivel.cli.main import cli
from swivel.cli.options import Command, Integer
from swivel.cli.render import show
from swivel.cli.terminal import print_result
from swivel.runtime.options import RunOptions


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("other", required=False)
@click.option(
    "--port", type=Integer(), default=explorer.PORT, show_default=True, help="port to listen on; 0: any free one"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--no-browser", is_flag=True, help="only print the address, open nothing")
@click.option("--matrix", metavar="DIR", help="counts that VECTORS were trained on  [default: those of the same run]")
def explore(
    vectors: str, other: str | None, port: int, host: str, no_browser: bool, matrix: str | None, options: RunOptions
) -> None:
    """Serve a local web page that shows vectors; with OTHER, two models side by side.

    \b
    swivel explore work                       what `swivel run` wrote
    swivel explore glove.6B.300d.txt          or any file of another tool's
    swivel explore work glove.6B.300d.txt     side by side
    """
    explorer.check_extra()
    message = options.progress.message
    with explorer.listen(host, port) as listener:
        exploration = explorer.open_exploration([vectors, other] if other else [vectors], matrix)
        url = explorer.name_url(listener)
        names = " and ".join(each.name for each in exploration.sets)
        show({"url": url}, lambda: print_result(f"{names}: {url}"))

        if not explorer.is_loopback(host):
            message(f"warning: everyone who can reach {host} can read these vectors; there is no password")
        if no_browser or not webbrowser.open(url):
            message("open the address in a browser")
        message("Ctrl-C ends it")
        explorer.serve(exploration, listener, host)
    message("stopped")
