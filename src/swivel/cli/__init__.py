"""The command line. It prints and parses; everything else is done in the rooms below.

`commands` has the verbs, `options` makes their flags from the configurations, `bars` draws progress.
"""

from swivel.cli.commands import cli, main

__all__ = ["cli", "main"]
