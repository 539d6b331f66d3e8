"""The command line. It prints and parses; everything else is done in the rooms below.

`commands`, `comparing`, `data`, `experiments`, `exploring`, `exporting`, `extending` and `picturing` have the verbs,
`options` makes their flags from the configurations, `bars` draws progress.
"""

from swivel.cli.compare import compare
from swivel.cli.data import add, import_
from swivel.cli.explore import explore
from swivel.cli.export import export
from swivel.cli.extend import extend
from swivel.cli.main import cli, main
from swivel.cli.plot import epochs, fit, norms
from swivel.cli.reproduce import plot, reproduce

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
    "epochs",
    "plot",
    "reproduce",
]
