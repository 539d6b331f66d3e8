"""Comparison of models: planted changes come first, for frequent words and with a noise baseline, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner, Result

import swivel
from swivel.cli import cli
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.errors import ConfigError
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.comparison import ModelComparison, compare, running_middle

WORDS = 400
DIM = 12
MOVED = ("w7", "w150", "w390")


def make(table: np.ndarray, counts: np.ndarray | None = None) -> Vectors:
    return Vectors(VectorTable(Vocabulary([f"w{n}" for n in range(len(table))], counts), table.astype(np.float32)))


def turned(table: np.ndarray, seed: int, noise: float | np.ndarray = 0.0) -> np.ndarray:
    """Return the table with noise and a random rotation."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    return np.asarray((table + noise * rng.normal(size=table.shape)) @ rotation)


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(WORDS, DIM))


@pytest.fixture
def moved(table: np.ndarray) -> np.ndarray:
    """The table with the vectors of three words reversed."""
    changed = table.copy()
    for word in MOVED:
        changed[int(word[1:])] = -table[int(word[1:])]
    return changed


def test_planted_words_come_first(table: np.ndarray, moved: np.ndarray) -> None:
    found = compare(make(table), make(turned(moved, 1, noise=0.2)))
    assert {word.word for word in found.words[:3]} == set(MOVED)
    assert all(word.cosine < -0.8 and word.rank_z > 10 for word in found.words[:3])
    assert abs(found.words[3].rank_z) < 6
    assert len(found) == WORDS


def test_a_frequent_word_that_changed_comes_before_noisy_rare_words() -> None:
    table = np.random.default_rng(0).normal(size=(1600, DIM))
    noise = np.linspace(0.05, 0.6, len(table))[:, None]
    changed = table.copy()
    changed[3] += 0.7 * np.linalg.norm(table[3]) * np.eye(DIM)[0]  # a small change of a word without noise
    found = compare(make(table), make(turned(changed, 2, noise)))

    assert found.words[0].word == "w3"
    assert sum(word.cosine < found.words[0].cosine for word in found) > 20  # a ranking by cosine would put these first
    assert found.words[0].usual > 0.95


def test_neighbors_are_those_of_each_model(table: np.ndarray, moved: np.ndarray) -> None:
    before = make(table)
    after = make(turned(moved, 1))
    word = compare(before, after, neighbors=4).words[0]
    assert word.before == tuple(near.token for near in before.nearest(word.word, count=4))
    assert word.after == tuple(near.token for near in after.nearest(word.word, count=4))
    assert word.overlap == len({*word.before} & {*word.after}) / 4


def test_equal_models_agree_on_everything(table: np.ndarray) -> None:
    found = compare(make(table), make(turned(table, 1)))
    assert found.whole.cosine == pytest.approx(1)
    assert found.whole.overlap == pytest.approx(1)
    assert max(abs(word.rank_z) for word in found) < 1
    assert found.noise_baseline is None
    assert found.words[0].same_text is None
    assert found.words[0].moved_z is None


def test_noise_baseline_is_the_agreement_of_two_trainings_on_one_text(table: np.ndarray, moved: np.ndarray) -> None:
    before = make(table)
    after = make(turned(moved, 1, noise=0.3))
    again = make(turned(table, 2, noise=0.3))
    found = compare(before, after, noise_baseline=again)

    assert found.noise_baseline is not None
    assert found.noise_baseline == compare(again, before).whole

    first = found.words[0]

    assert first.same_text is not None
    assert first.moved_z is not None
    assert first.same_text == pytest.approx(found.noise_baseline.cosine, abs=0.02)
    assert first.moved_z > 10

    others = [word.moved_z for word in found.words[3:] if word.moved_z is not None]

    assert abs(np.median(others)) < 0.5  # both comparisons have the same noise


def test_only_common_words_that_all_models_have_are_compared(table: np.ndarray) -> None:
    counts = np.arange(WORDS, 0, -1)
    before = make(table, counts)
    after = make(turned(table, 1), counts[::-1])
    words = {word.word for word in compare(before, after, min_count=100)}

    assert words == {f"w{n}" for n in range(WORDS) if counts[n] >= 100 and counts[::-1][n] >= 100}
    assert len(compare(before, after, top=50)) == 50

    fewer = make(table[:90])

    assert {word.word for word in compare(before, after, noise_baseline=fewer)} == {f"w{n}" for n in range(19, 90)}


def test_words_without_a_vector_are_left_out(table: np.ndarray) -> None:
    empty = table.copy()
    empty[5] = 0
    assert "w5" not in {word.word for word in compare(make(table), make(turned(empty, 1)))}


def test_words_with_unknown_counts_are_compared(table: np.ndarray) -> None:
    assert len(compare(make(table), make(table), min_count=10**6)) == WORDS


def test_running_middle_follows_the_values() -> None:
    values = np.concatenate([np.zeros(1000), np.ones(1000)])
    middle, spread = running_middle(values)
    assert (middle[:700] == 0).all()
    assert (middle[1300:] == 1).all()
    assert spread[0] == 0.01


def test_the_middle_is_that_of_400_values() -> None:
    values = np.random.default_rng(3).normal(size=1000)
    middle, spread = running_middle(values)
    for n, first in ((0, 0), (199, 0), (500, 300), (777, 577), (800, 600), (999, 600)):
        window = values[first : first + 400]
        assert middle[n] == np.median(window)
        assert spread[n] == pytest.approx(1.4826 * np.median(np.abs(window - np.median(window))))


def test_z_is_in_units_of_the_standard_deviation_of_a_normal_distribution(table: np.ndarray) -> None:
    before, after, again = (make(turned(table, seed, noise=0.1 * seed)) for seed in (0, 1, 2))
    found = {word.word: word for word in compare(before, after, noise_baseline=again)}
    baseline = {word.word: word for word in compare(again, before)}
    angles, usual = (np.arctanh([words[word].cosine for word in found]) for words in (found, baseline))

    # All 400 words are in one window. Half of a normal distribution is within this many standard deviations.
    for z, others in (("rank_z", angles), ("moved_z", usual)):
        middle = np.median(others)
        spread = np.median(np.abs(others - middle)) / scipy.stats.norm.ppf(0.75)
        expected = (middle - angles) / spread
        assert [getattr(word, z) for word in found.values()] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top": 0}, "top must be a positive integer, got 0"),
        ({"neighbors": 0}, "neighbors must be a positive integer"),
        ({"min_count": -1}, "min_count must be an integer of 0 or more"),
    ],
)
def test_wrong_settings_raise_errors(settings: dict[str, Any], message: str, table: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(make(table), make(table), **settings)


def test_models_without_a_common_word_raise_an_error(table: np.ndarray) -> None:
    other = Vectors(VectorTable(Vocabulary(["x", "y"]), np.eye(2, DIM, dtype=np.float32)))
    with pytest.raises(ConfigError, match="share no word"):
        compare(make(table), other)


def test_table_has_one_line_per_word(table: np.ndarray, moved: np.ndarray, tmp_path: Path) -> None:
    found = compare(make(table), make(turned(moved, 1)))
    found.write(tmp_path / "moved.tsv")
    header, *lines = [line.split("\t") for line in (tmp_path / "moved.tsv").read_text().splitlines()]

    assert header[:4] == ["word", "count_before", "count_after", "cosine"]
    assert [line[0] for line in lines] == [word.word for word in found]
    assert all(len(line) == len(header) for line in lines)
    assert lines[0][header.index("after")].split(" ") == list(found.words[0].after)
    assert lines[0][header.index("moved_z")] == ""


def test_json_includes_the_agreement(table: np.ndarray, tmp_path: Path) -> None:
    found = compare(make(table), make(turned(table, 1, noise=0.1)))
    found.write(tmp_path / "moved.json")
    assert json.loads((tmp_path / "moved.json").read_text()) == json.loads(json.dumps(found.to_dict()))
    assert found.to_dict(2)["compared"] == WORDS
    assert len(found.to_dict(2)["words"]) == 2


def test_other_suffixes_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"written as \.tsv, \.json"):
        ModelComparison((), compare(*[make(np.eye(4))] * 2).whole, None).write(tmp_path / "moved.xlsx")


def test_an_unknown_setting_is_refused_with_its_name() -> None:
    model = make(np.eye(4))
    with pytest.raises(ConfigError, match="'tops' is not a setting here; did you mean top"):
        compare(model, model, tops=3)


# The command line


def show(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="swivel")


@pytest.fixture
def folders(table: np.ndarray, moved: np.ndarray, tmp_path: Path) -> list[Path]:
    tables = [table, turned(moved, 1, noise=0.3), turned(table, 2, noise=0.3)]
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, values in zip(paths, tables, strict=True):
        make(values).save(path)
    return paths


def test_models_may_be_given_by_their_folders(folders: list[Path]) -> None:
    opened = [swivel.load(folder) for folder in folders]
    by_path = compare(folders[0], str(folders[1]), noise_baseline=folders[2])
    assert by_path == compare(opened[0], opened[1], noise_baseline=opened[2])


def test_command_prints_changed_words_with_neighbors(folders: list[Path]) -> None:
    ended = show("compare", folders[0], folders[1], "--count", 3)

    assert ended.exit_code == 0

    lines = ended.stdout.splitlines()

    assert lines[0].startswith("400 words compared: mean cosine 0.9")
    assert lines[2].split() == ["word", "cosine", "usual", "z"]
    assert {lines[n].split()[0] for n in (3, 6, 9)} == set(MOVED)
    assert lines[4].startswith("    A: w")
    assert lines[5].startswith("    B: w")
    assert len(lines) == 12


def test_command_uses_a_noise_baseline_and_writes_a_file(folders: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "moved.tsv"
    ended = show("compare", *folders[:2], "--noise-baseline", folders[2], "-o", file)
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[1].startswith("two trainings of one text: mean cosine 0.9")
    assert ended.stdout.splitlines()[3].split() == ["word", "cosine", "usual", "z", "same", "text", "z"]
    assert len(file.read_text().splitlines()) == WORDS + 1


def test_command_prints_json(folders: list[Path]) -> None:
    data = json.loads(show("compare", *folders[:2], "--json", "--count", 2).stdout)
    assert data["compared"] == WORDS
    assert [word["word"] in MOVED for word in data["words"]] == [True, True]


def test_command_checks_the_suffix_before_comparing(tmp_path: Path) -> None:
    ended = show("compare", tmp_path / "nowhere", tmp_path / "nowhere", "-o", "moved.csv")
    assert isinstance(ended.exception, ConfigError)
    assert "moved.csv" in str(ended.exception)


@pytest.fixture(scope="module")
def trainings(planted: Matrix, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two trainings on one matrix and one on another."""
    folder = tmp_path_factory.mktemp("trainings")
    other = swivel.count(["w0 w1 w2 w3 w4 w5 w6 w7 w8"] * 30, recipe="fast", min_count=1)
    for name, matrix, seed in (("a", planted, 1), ("b", planted, 2), ("c", other, 1)):
        swivel.train(matrix, folder / name, recipe="fast", dim=4, epochs=2, backend="reference", seed=seed)
    return [folder / name for name in "abc"]


def test_command_reports_a_noise_baseline_of_another_text(trainings: list[Path]) -> None:
    ended = show("compare", trainings[0], trainings[1], "--noise-baseline", trainings[2], "--min-count", 0)
    assert "the noise baseline was trained on other counts than A" in ended.stderr
    assert "noise baseline" not in show("compare", *trainings[:2], "--noise-baseline", trainings[1]).stderr
