"""The report of a finished run: `report.html`, one self-contained page.

`look_at_run` collects the numbers from the folder of vectors and their matrix, `compose_run` arranges them in a
document, and `write_report` writes the page. An error in the report does not make the run fail.
"""

from swivel.reports.run_report.collect import RunSummary, find_epochs, find_fit, find_norms, look_at_run
from swivel.reports.run_report.compose import compose_run
from swivel.reports.run_report.write import REPORT, write_report, write_run_report

__all__ = [
    "REPORT",
    "RunSummary",
    "compose_run",
    "find_fit",
    "find_norms",
    "find_epochs",
    "write_run_report",
    "look_at_run",
    "write_report",
]
