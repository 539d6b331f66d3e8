"""The command line. It prints and parses; everything else is done in the rooms below.

`commands` and `experiments` have the verbs, `options` makes their flags from the configurations, `bars` draws progress.
"""

from swivel.cli.commands import cli, main
from swivel.cli.experiments import plot, reproduce

__all__ = ["cli", "main", "plot", "reproduce"]
