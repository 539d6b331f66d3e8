"""Fonts for the letters of a map."""

import warnings

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib import font_manager, ft2font

from swivel.reports import plots


def letters(name: str) -> set[int]:
    return set(ft2font.FT2Font(font_manager.findfont(name)).get_charmap())


def test_a_font_is_found_for_letters_that_matplotlibs_own_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both fonts are part of matplotlib.
    others = [entry for entry in font_manager.fontManager.ttflist if entry.name in ("DejaVu Sans", "STIXGeneral")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", others)
    only_there = min(point for point in letters("STIXGeneral") - letters("DejaVu Sans") if chr(point).isprintable())
    assert plots.find_fonts("abc") == ["DejaVu Sans"]
    assert plots.find_fonts("abc" + chr(only_there)) == ["DejaVu Sans", "STIXGeneral"]


def test_a_script_without_a_font_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # matplotlib has a font of its own with a box for every letter.
    own = ("DejaVu Sans", "Last Resort High-Efficiency")
    others = [entry for entry in font_manager.fontManager.ttflist if entry.name in own]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", others)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = plots.plot_map(["猫", "犬", "แมว"], np.eye(3, 2, dtype=np.float32))
        assert plots.draw_figure(figure, "png")
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1
    assert messages[0].startswith("no installed font has the letters of Chinese, Thai") and "\n" not in messages[0]
