"""The command line. It prints and parses; everything else is done in the rooms below.

`commands`, `data`, `experiments`, `exploring` and `exporting` have the verbs, `options` makes their flags from the
configurations, `bars` draws progress.
"""

from swivel.cli.commands import cli, main
from swivel.cli.data import import_
from swivel.cli.experiments import plot, reproduce
from swivel.cli.exploring import explore
from swivel.cli.exporting import export

__all__ = ["cli", "explore", "export", "import_", "main", "plot", "reproduce"]
