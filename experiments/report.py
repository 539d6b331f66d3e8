"""What the reports of both experiments share: figures, marks, the machine, and writing them as a page and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import swivel
from swivel.evaluation.bootstrap import Interval
from swivel.pipeline.info import library_versions
from swivel.runtime.resources import count_cores

HTML, RESULTS = "report.html", "results.json"
BELOW, ABOVE, BEST = "▽", "▲", "★"
MARKS = (
    f"{BEST}: the best of its column. {BELOW}: significantly below the first method; {ABOVE}: significantly above it, "
    "by a paired bootstrap over the same items (95 %, each column separately)."
)
LIBRARIES = ("numpy", "scipy", "numba", "torch", "gensim", "matplotlib", "scikit-learn")


def write_report(out: Path, page: str, results: Mapping[str, Any]) -> None:
    """Write `report.html`, which loads nothing else, and `results.json`."""
    (out / RESULTS).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / HTML).write_text(page, encoding="utf-8")


def format_figure(figure: float | None) -> str:
    """Return a figure without a leading zero.

    >>> format_figure(0.7601), format_figure(-0.05), format_figure(None), format_figure(1.0)
    ('.760', '−.050', '–', '1.000')
    """
    if figure is None:
        return "–"
    text = f"{abs(figure):.3f}"
    sign = "−" if figure < 0 and float(text) != 0 else ""
    return sign + text.removeprefix("0")


def format_range(interval: Interval | None) -> str:
    """Return an interval, an empty text if there is none."""
    return "" if interval is None else f"{format_figure(interval[0])} to {format_figure(interval[1])}"


def mark_figure(figure: float | None, difference: Interval | None = None, *, is_best: bool = False) -> str:
    """Return a figure with its marks; `difference` is the interval of the first method minus this one.

    >>> mark_figure(0.5, (0.1, 0.2)), mark_figure(0.5, (-0.2, -0.1), is_best=True), mark_figure(0.5, (-0.1, 0.1))
    ('.500 ▽', '.500 ★ ▲', '.500')
    """
    text = format_figure(figure)
    if is_best:
        text += f" {BEST}"
    if difference is not None and difference[0] > 0:
        text += f" {BELOW}"
    elif difference is not None and difference[1] < 0:
        text += f" {ABOVE}"
    return text


def describe_machine(threads: int | None) -> dict[str, Any]:
    """Return processor, cores in use, system and versions, without names of hosts, users or folders."""
    return {
        "processor": name_processor(),
        "cores": threads or count_cores(),
        "system": f"{platform.system()} on {platform.machine()}",
        "swivel-embeddings": swivel.__version__,
        "python": platform.python_version(),
        **library_versions(*LIBRARIES),
    }


def name_processor() -> str:
    """Return the model name of the processor, or the best description that the system has."""
    information = Path("/proc/cpuinfo")  # Linux
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
