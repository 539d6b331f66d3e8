"""Tests of the figures: they show the given values, and the same figure gives the same bytes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from swivel.cli import cli
from swivel.errors import ConfigError, MissingExtra, StorageError
from swivel.reports.plots import INK, draw_figure, plot_epochs, save_figure


def plot_one() -> Figure:
    return plot_epochs([{"mean": 0.3, "observed": 2.0, "unobserved": 0.2}])


def test_figures_are_the_same_bytes_every_time_and_without_a_date() -> None:
    assert draw_figure(plot_one(), "png") == draw_figure(plot_one(), "png")
    svg = draw_figure(plot_one(), "svg")
    assert svg == draw_figure(plot_one(), "svg")
    assert b"<dc:date>" not in svg
    assert INK.encode() in svg


def test_drawing_does_not_change_matplotlib_settings_or_import_pyplot() -> None:
    around: dict[Any, Any] = {"font.size": 30.0, "text.color": "red", "svg.hashsalt": None, "axes.linewidth": 5.0}
    with matplotlib.rc_context(around):
        png = draw_figure(plot_one(), "png")
        assert {name: matplotlib.rcParams[name] for name in around} == around
    assert png == draw_figure(plot_one(), "png")
    assert "matplotlib.pyplot" not in sys.modules


def test_the_file_extension_chooses_the_format(tmp_path: Path) -> None:
    figure = plot_one()
    save_figure(figure, tmp_path / "deep" / "curve.PNG")
    save_figure(figure, str(tmp_path / "curve.svg"))

    assert (tmp_path / "deep" / "curve.PNG").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()
    save_figure(figure, tmp_path / "curve.pdf")
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ConfigError, match=r"curve\.jpg: figures are written as \.png, \.svg, \.pdf"):
        save_figure(figure, tmp_path / "curve.jpg")

    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="file"):
        save_figure(figure, tmp_path / "file" / "curve.png")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=re.escape("plots need matplotlib: pip install 'swivel-embeddings[plot]'")):
        plot_one()


def test_a_wrong_file_extension_is_rejected_before_any_work(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["plot", "epochs", "nowhere", "-o", str(tmp_path / "x.jpg")])
    assert isinstance(done.exception, ConfigError)
    assert "figures are written as .png, .svg, .pdf" in str(done.exception)
