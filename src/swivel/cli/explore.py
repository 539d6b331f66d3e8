"""`swivel explore`: vectors in the browser."""

from __future__ import annotations

import webbrowser
from typing import Any

import click

from swivel.cli.main import cli, take_options
from swivel.cli.options import Command, output_options
from swivel.cli.render import show


@cli.command(cls=Command, short_help="Vectors in the browser: neighbours, map.")
@click.argument("vectors")
@click.argument("other", required=False)
@click.option("--port", type=int, default=8707, show_default=True, help="port to listen on; 0: any free one")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--no-browser", is_flag=True, help="only print the address, open nothing")
@click.option("--matrix", metavar="DIR", help="counts that VECTORS were trained on  [default: those of the same run]")
@output_options
def explore(vectors: str, other: str | None, port: int, host: str, no_browser: bool, **rest: Any) -> None:
    """Serve a local web page that shows vectors; with OTHER, two models side by side.

    \b
    swivel explore work                       what `swivel run` wrote
    swivel explore glove.6B.300d.txt          or any file of another tool's
    swivel explore work glove.6B.300d.txt     side by side
    """
    from swivel import explorer

    matrix = rest.pop("matrix")
    options, as_json, _ = take_options(rest)
    explorer.check_extra()
    with explorer.listen(host, port) as listener:
        exploration = explorer.open_exploration([vectors, *([other] if other else [])], matrix)
        url = explorer.name_url(listener)
        names = " and ".join(each.name for each in exploration.sets)
        show({"url": url}, as_json, lambda: click.echo(f"{names}: {url}"))
        if not explorer.Hosts(host).is_loopback:
            options.progress.message(
                f"warning: everyone who can reach {host} can read these vectors; there is no password"
            )
        if no_browser or not webbrowser.open(url):
            options.progress.message("open the address in a browser")
        options.progress.message("Ctrl-C ends it")
        explorer.serve(exploration, listener, host)
    options.progress.message("stopped")
