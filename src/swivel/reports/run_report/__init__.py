"""A finished run as a page: `report.html`, one file that asks for nothing.

Receives the folder of vectors that training wrote and their matrix; hands on what there is to see of them
(`look_at_run`) and the page (`write_report`). It trains nothing, and whatever goes wrong here leaves a finished run
finished.
"""

from swivel.reports.run_report.collect import RunSummary, find_epochs, find_fit, find_norms, look_at_run
from swivel.reports.run_report.compose import compose_run
from swivel.reports.run_report.write import REPORT, leave_report, write_report

__all__ = [
    "REPORT",
    "RunSummary",
    "compose_run",
    "find_fit",
    "find_norms",
    "find_epochs",
    "leave_report",
    "look_at_run",
    "write_report",
]
