"""The command line: one module per command or group of commands.

`main` has the entry point and the most used commands, and imports the other modules when their commands are used.
`options` makes flags from the configurations, `render` prints results, `progress_bars` draws progress.
"""

from swivel.cli.main import cli, main

__all__ = ["cli", "main"]
