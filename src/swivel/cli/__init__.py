"""The command line. It prints and parses; everything else is done in the rooms below.

`commands`, `comparing`, `data`, `experiments`, `exploring`, `exporting`, `extending` and `picturing` have the verbs,
`options` makes their flags from the configurations, `bars` draws progress.
"""

from swivel.cli.commands import cli, main
from swivel.cli.comparing import compare
from swivel.cli.data import add, import_
from swivel.cli.experiments import plot, reproduce
from swivel.cli.exploring import explore
from swivel.cli.exporting import export
from swivel.cli.extending import extend
from swivel.cli.picturing import fit, norms, passes

__all__ = [
    "add",
    "cli",
    "compare",
    "explore",
    "export",
    "extend",
    "fit",
    "import_",
    "main",
    "norms",
    "passes",
    "plot",
    "reproduce",
]
