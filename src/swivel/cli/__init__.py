"""The command line: one module per command or group of commands.

`main` has the entry point and the most used commands; the other modules register theirs when they are imported.
`options` makes flags from the configurations, `render` prints results, `progress_bars` draws progress.
"""

from swivel.cli import compare, data, explore, export, extend, plot, reproduce
from swivel.cli.main import cli, main

__all__ = ["cli", "compare", "data", "explore", "export", "extend", "main", "plot", "reproduce"]
