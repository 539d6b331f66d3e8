"""The figures that explain the paper's method show the given values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import figures
from experiments.figures import COUNTS, TARGET, losses_of, plot_block, plot_losses, shrink
from swivel.counts import Matrix


@pytest.mark.parametrize("count", [0.1, 1.0, 50.0])
def test_loss_of_an_observed_cell_is_the_weighted_squared_error(count: float) -> None:
    at = np.array([-3.0, 0.0, TARGET, 5.5])
    confidence = 0.1 + 0.25 * count**0.5
    assert np.allclose(losses_of(count, at), 0.5 * confidence * (at - TARGET) ** 2, atol=1e-12)


def test_loss_of_an_unobserved_cell_is_the_soft_hinge() -> None:
    at = np.array([-3.0, 0.0, TARGET, 5.5])
    assert np.allclose(losses_of(0.0, at), np.log1p(np.exp(at - TARGET)), atol=1e-12)


def test_losses_have_a_labeled_curve_for_every_count_and_one_for_none() -> None:
    (axes,) = plot_losses().axes
    assert len(axes.lines) == 1 + len(COUNTS) + 1  # and the line of the target
    texts = {text.get_text() for text in axes.texts}
    assert texts == {"seen, x = 1", "x = 10", "x = 100", "never seen", "target"}


@pytest.mark.parametrize(("blocks", "titles"), [((2, 2), "31 × 31"), ((3, 5), "21 × 13"), ((20, 20), "4 × 4")])
def test_both_panels_of_the_block_figure_are_parts_of_the_matrix(
    planted: Matrix, tmp_path: Path, blocks: tuple[int, int], titles: str
) -> None:
    figure = plot_block(planted.reblocked(*blocks, scratch=tmp_path))
    left, right = (np.asarray(axes.images[0].get_array()) for axes in figure.axes[:2])
    whole = np.log1p(planted.to_scipy().toarray())
    rows, columns = right.shape
    assert np.allclose(right, whole[:: blocks[0], :: blocks[1]])
    assert np.allclose(left, whole[:rows, :columns])
    assert [axes.get_title("left") for axes in figure.axes[:2]] == [
        f"sorted by frequency: the first {titles}",
        f"interleaved: one block of {titles}",
    ]


def test_shrinking_takes_means_and_cuts_off_the_remainder(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.arange(35.0).reshape(5, 7)
    assert np.array_equal(shrink(picture), picture)
    monkeypatch.setattr(figures, "MAX_PIXELS", 3)
    small = shrink(picture)
    assert small.shape == (1, 2)
    assert small[0].tolist() == [picture[:3, :3].mean(), picture[:3, 3:6].mean()]
