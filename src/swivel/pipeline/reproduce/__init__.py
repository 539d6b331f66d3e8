"""The paper's experiment in one call: count, train every method, evaluate, draw, report.

Receives text and a `ReproduceConfig`, hands on `Results` and a folder: `report.html` (one file that asks for nothing)
and its twin `report.md`, `results.json`, `figures/`, and what they were made from. Each stage is a folder of its own
and is done once; interrupted, the same call goes on. It knows no method's insides.
"""

from swivel.pipeline.reproduce.config import METHODS, USUAL, ReproduceConfig
from swivel.pipeline.reproduce.results import Results
from swivel.pipeline.reproduce.run import reproduce
from swivel.pipeline.reproduce.subprocess import run_here, run_in_process

__all__ = ["METHODS", "USUAL", "ReproduceConfig", "Results", "reproduce", "run_here", "run_in_process"]
