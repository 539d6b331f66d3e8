"""The paper's experiment in one call: count a text, train several methods, evaluate them, and write a report.

`reproduce` returns `Results` and writes a folder with `report.html` (self-contained), `report.md` with the same
content, `results.json`, `figures/`, and the folder of each stage. A finished stage is not run again; if the call is
interrupted, repeat it to resume. `reproduce_table` does the same for the methods that rank the cells of a table.
"""

from swivel.pipeline.reproduce.config import METHODS, USUAL, ReproduceConfig
from swivel.pipeline.reproduce.results import Results
from swivel.pipeline.reproduce.run import reproduce
from swivel.pipeline.reproduce.subprocess import run_here, run_in_process
from swivel.pipeline.reproduce.table_report import TABLE_METHODS, TableResults
from swivel.pipeline.reproduce.table_run import TABLE_DIM, reproduce_table

__all__ = [
    "METHODS",
    "TABLE_DIM",
    "TABLE_METHODS",
    "USUAL",
    "ReproduceConfig",
    "Results",
    "TableResults",
    "reproduce",
    "reproduce_table",
    "run_here",
    "run_in_process",
]
