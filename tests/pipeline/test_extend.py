"""Tests of `extend`: known words do not change, and new words are counted, folded in and combined as in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import swivel
from message_recorder import MessageRecorder
from swivel.cli import cli
from swivel.config import TrainConfig, VectorsConfig
from swivel.corpus.encoded_corpus import TypeCounts
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import MatrixBuilder, MatrixSpec
from swivel.counts import block_layout as layout
from swivel.errors import ConfigError, FolderExists, SwivelError, VocabularyError
from swivel.pipeline import extend as extend_module
from swivel.pipeline.extend import extend
from swivel.pipeline.info import describe_folder
from swivel.pipeline.run import run
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.storage.manifest import MANIFEST, read_manifest, seal, unseal
from swivel.training.fold_in import fold_in
from swivel.vectors import Vectors, combine_vectors, recover_axes

QUICK: dict[str, Any] = {"dim": 4, "backend": "cpu", "dtype": "float32", "min_count": 1}
GROUPS = ("red green blue pink gray brown", "cat dog cow hen pig goat", "run sit eat jump swim walk")
NEW = {"teal": 0, "lamb": 1, "crawl": 2}


def make_lines(seed: int, new: dict[str, int], count: int = 300) -> list[str]:
    """Return lines with words of one group and a few of other groups; `new` maps new words to their groups."""
    rng = np.random.default_rng(seed)
    groups = [group.split() + [word for word, own in new.items() if own == n] for n, group in enumerate(GROUPS)]
    others = " ".join(GROUPS).split()
    lines = [[*rng.choice(groups[n % 3], size=5), *rng.choice(others, size=1)] for n in range(count)]
    return [" ".join(rng.permutation(line)) for line in lines]


OLD_TEXT, NEW_TEXT = make_lines(1, {}), make_lines(2, NEW)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one trained folder per recipe."""
    parent = tmp_path_factory.mktemp("trained")
    (parent / "old.txt").write_text("\n".join(OLD_TEXT) + "\n")
    for recipe in ("fast", "default", "paper"):
        run(parent / "old.txt", parent / recipe, recipe=recipe, epochs=40, **QUICK)
    return {recipe: parent / recipe / "vectors" for recipe in ("fast", "default", "paper")}


@pytest.fixture(scope="module")
def extended(folders: dict[str, Path]) -> dict[str, Vectors]:
    return {recipe: extend(folders[recipe], NEW_TEXT) for recipe in ("fast", "default", "paper")}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "new.txt"
    file.write_text("\n".join(NEW_TEXT) + "\n")
    return file


RECIPES = pytest.mark.parametrize("recipe", ["fast", "default", "paper"])


@RECIPES
def test_known_words_stay_bit_for_bit(recipe: str, folders: dict[str, Path], extended: dict[str, Vectors]) -> None:
    old, new = Vectors.load(folders[recipe]), extended[recipe]
    assert old.columns is not None
    assert new.columns is not None
    assert new.vocabulary.tokens[: len(old)] == old.vocabulary.tokens
    for name in ("vectors", "rows", "columns", "row_sums", "column_sums"):
        before, after = getattr(old, name), getattr(new, name)
        assert after[: len(before)].tobytes() == before.tobytes()


@RECIPES
def test_new_words_follow_by_decreasing_count(
    recipe: str, folders: dict[str, Path], extended: dict[str, Vectors]
) -> None:
    old, new = Vectors.load(folders[recipe]), extended[recipe]
    seen = " ".join(NEW_TEXT).split()
    words = sorted(NEW, key=lambda word: -seen.count(word))
    assert list(new.vocabulary.tokens[len(old) :]) == words
    assert new.vocabulary.counts[len(old) :].tolist() == [seen.count(word) for word in words]
    assert new.column_table is not None
    assert len(new.column_table.vocabulary) == len(new) * new.columns_per_row


@RECIPES
def test_new_words_are_near_the_words_that_they_occur_with(recipe: str, extended: dict[str, Vectors]) -> None:
    for word, group in NEW.items():
        nearest = [near.token for near in extended[recipe].nearest(word, count=3)]
        assert set(nearest) <= set(GROUPS[group].split())


@RECIPES
def test_new_words_have_scores_as_rows_and_as_columns(recipe: str, extended: dict[str, Vectors]) -> None:
    vectors = extended[recipe]
    assert vectors.score("lamb", "dog") > vectors.score("lamb", "red")
    assert vectors.score("dog", "lamb") > vectors.score("red", "lamb")


@RECIPES
def test_rows_and_columns_are_folded_from_the_counts_of_the_joint_text(
    recipe: str, folders: dict[str, Path], extended: dict[str, Vectors]
) -> None:
    old, new = Vectors.load(folders[recipe]), extended[recipe]
    config = TrainConfig(**read_manifest(folders[recipe]).config["train"])
    matrix = swivel.count(NEW_TEXT, recipe=recipe, vocabulary=new.vocabulary.tokens)
    counts, parts, known = matrix.to_scipy().toarray(), old.columns_per_row, len(old)
    ids = [matrix.rows.id(word) for word in new.vocabulary]
    by_word = counts.reshape(len(new), len(new), parts)[np.ix_(ids, ids)]  # (row, column's word, part)

    assert old.columns is not None
    assert old.row_sums is not None
    assert old.column_sums is not None
    assert new.columns is not None

    total = float(old.row_sums.sum())
    rows = fold_in(by_word[known:, :known].reshape(3, -1), old.columns, old.column_sums, total, config)

    np.testing.assert_allclose(new.rows[known:], rows, atol=1e-5)

    seen_from = by_word[:known, known:].transpose(1, 2, 0).reshape(3 * parts, known)
    columns = fold_in(seen_from, old.rows, old.row_sums, total, config)

    np.testing.assert_allclose(new.columns[known * parts :], columns, atol=1e-5)
    np.testing.assert_allclose(new.row_sums[known:], by_word[known:, :known].sum(axis=(1, 2)), rtol=1e-6)  # type: ignore[index]


@RECIPES
def test_the_number_of_blocks_does_not_change_new_words(
    recipe: str, folders: dict[str, Path], extended: dict[str, Vectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BLOCK_SIZE", 4)  # 6 x 6 blocks, whose mirrors a symmetric matrix does not store
    new = extend(folders[recipe], NEW_TEXT)
    assert new.vocabulary == extended[recipe].vocabulary
    for name in ("rows", "columns", "row_sums", "column_sums"):
        np.testing.assert_allclose(getattr(new, name), getattr(extended[recipe], name), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("count", [8, 40, 200])
def test_axes_are_recovered_from_any_number_of_words(count: int) -> None:
    rng, config = np.random.default_rng(3), VectorsConfig(combine="parts")
    rows = rng.normal(size=(count, 5)).astype(np.float32)
    columns = rng.normal(size=(count * 4, 5)).astype(np.float32)
    vectors = combine_vectors(rows, columns, 4, config)
    axes = recover_axes(rows, columns, vectors, config)

    assert axes.shape == (30, 5)
    np.testing.assert_allclose(combine_vectors(rows, columns, 4, config, axes=axes), vectors, atol=1e-4)

    alone = combine_vectors(rows[:2], columns[:8], 4, config, axes=axes)

    np.testing.assert_allclose(alone, vectors[:2], atol=1e-4)


def test_axes_recovered_from_some_words_apply_to_other_words() -> None:
    rng, config = np.random.default_rng(4), VectorsConfig(combine="parts")
    rows, columns = rng.normal(size=(300, 5)).astype(np.float32), rng.normal(size=(300, 5)).astype(np.float32)
    vectors = combine_vectors(rows, columns, 1, config)
    fewer = recover_axes(rows[:100], columns[:100], vectors[:100], config)  # enough for 15 dimensions
    np.testing.assert_allclose(combine_vectors(rows, columns, 1, config, axes=fewer), vectors, atol=1e-3)


# The result as a folder


def test_result_is_a_folder_that_can_be_extended_again(folders: dict[str, Path], tmp_path: Path) -> None:
    first = extend(folders["default"], NEW_TEXT, tmp_path / "first", vocabulary=["teal"])
    second = extend(tmp_path / "first", NEW_TEXT, tmp_path / "second")
    assert second.vocabulary.tokens[: len(first)] == first.vocabulary.tokens
    assert second["teal"].tobytes() == first["teal"].tobytes()
    assert read_manifest(tmp_path / "second").facts["trained_rows"] == len(Vectors.load(folders["default"]))


def test_new_words_depend_on_trained_words_only(
    folders: dict[str, Path], extended: dict[str, Vectors], tmp_path: Path
) -> None:
    extend(folders["default"], NEW_TEXT, tmp_path / "first", vocabulary=["teal"])
    second = extend(tmp_path / "first", NEW_TEXT)
    for word in ("lamb", "crawl"):
        np.testing.assert_allclose(second[word], extended["default"][word], atol=1e-5)


def test_result_can_be_used_like_other_vectors(folders: dict[str, Path], tmp_path: Path) -> None:
    vectors = extend(folders["fast"], NEW_TEXT, tmp_path / "out")
    swivel.export(vectors, tmp_path / "out.bin")
    assert swivel.load(tmp_path / "out.bin")["teal"].tobytes() == vectors["teal"].tobytes()
    facts = describe_folder(tmp_path / "out", verify=True)
    assert facts["checksums"] == "all as written"


def test_loaded_vectors_give_the_result_of_their_folder(folders: dict[str, Path], extended: dict[str, Vectors]) -> None:
    again = extend(Vectors.load(folders["fast"]), NEW_TEXT)
    assert again.vectors.tobytes() == extended["fast"].vectors.tobytes()


def test_the_folder_of_a_run_is_accepted(folders: dict[str, Path], extended: dict[str, Vectors]) -> None:
    again = extend(folders["fast"].parent, NEW_TEXT)
    assert again.vectors.tobytes() == extended["fast"].vectors.tobytes()


def test_finished_folder_is_not_made_again(folders: dict[str, Path], text: Path, tmp_path: Path) -> None:
    extend(folders["fast"], text, tmp_path / "out")
    before = (tmp_path / "out" / MANIFEST).stat().st_mtime_ns
    progress = MessageRecorder()
    extend(folders["fast"], text, tmp_path / "out", options=RunOptions(progress=progress))

    assert (tmp_path / "out" / MANIFEST).stat().st_mtime_ns == before
    assert "finished already, nothing to do" in progress.lines[-1]
    with pytest.raises(FolderExists, match=r"with other settings \(vocabulary.min_count\)"):
        extend(folders["fast"], text, tmp_path / "out", min_count=3)
    with pytest.raises(FolderExists, match="from an iterator or a pipe cannot be compared"):
        extend(folders["fast"], iter(NEW_TEXT), tmp_path / "out")

    extend(folders["fast"], NEW_TEXT, tmp_path / "out", overwrite=True)
    extend(folders["fast"], list(NEW_TEXT), tmp_path / "out", progress=progress)
    assert "finished already, nothing to do" in progress.lines[-1]


def test_failure_leaves_no_folder_that_looks_finished(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(VocabularyError):
        extend(folders["fast"], OLD_TEXT, tmp_path / "out")
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


# Choice of words


def test_words_are_chosen_by_their_counts(folders: dict[str, Path]) -> None:
    lines = [*NEW_TEXT, "cat dog zebra"]
    known = len(Vectors.load(folders["fast"]))
    assert "zebra" not in extend(folders["fast"], lines)
    assert "zebra" in extend(folders["fast"], lines, min_count=1)
    assert len(extend(folders["fast"], lines, max_size=1)) == known + 1


def test_only_frequent_words_of_the_text_are_listed(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text may have millions of words that occur once; as Python strings they would take all memory."""
    limits = []
    most_frequent = TypeCounts.most_frequent

    def watch(types: TypeCounts, min_count: int = 1, limit: int = 0) -> dict[str, int]:
        limits.append(min_count > 1 or limit > 0)
        return most_frequent(types, min_count, limit)

    monkeypatch.setattr(TypeCounts, "most_frequent", watch)
    assert "lamb" in extend(folders["fast"], NEW_TEXT)
    assert limits
    assert all(limits)


def test_listed_words_are_added_if_the_text_has_them(folders: dict[str, Path]) -> None:
    progress, known = MessageRecorder(), Vectors.load(folders["fast"])
    listed = ["lamb", "cat", "unicorn", "lamb"]
    vectors = extend(folders["fast"], NEW_TEXT, vocabulary=listed, options=RunOptions(progress=progress))
    assert vectors.vocabulary.tokens[len(known) :] == ("lamb",)
    assert "1 listed words are not in the text ('unicorn'); they get no vector" in progress.lines


def test_word_without_a_known_neighbor_has_the_zero_vector(folders: dict[str, Path]) -> None:
    vectors = extend(folders["default"], ["alone", "alone", *NEW_TEXT], min_count=2)
    assert not vectors["alone"].any()


@pytest.mark.parametrize(
    ("lines", "settings", "says"),
    [
        (OLD_TEXT, {}, "the text has no new word: all 18 words are in the vocabulary"),
        (["a cat", "a dog"], {}, r"no new word occurs 5 times or more; pass a smaller min_count"),
        (NEW_TEXT, {"vocabulary": ["cat", "unicorn"]}, "none of the 2 listed words is both new and in the text"),
    ],
)
def test_text_without_a_new_word_is_refused(
    lines: list[str], settings: dict[str, Any], says: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(VocabularyError, match=says):
        extend(folders["fast"], lines, **settings)


# Settings of the counting


def test_text_is_counted_with_the_settings_of_the_training(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"window": 2, "weight": "uniform", "columns": "directional", "oov": "gap"}
    run(OLD_TEXT, tmp_path / "work", lowercase=False, **settings, **QUICK)
    extend(tmp_path / "work", NEW_TEXT, tmp_path / "out", min_count=2)
    manifest = read_manifest(tmp_path / "out")
    count = manifest.config["count"]

    assert {name: count[name] for name in settings} == settings
    assert manifest.config["corpus"]["lowercase"] is False
    assert manifest.config["vocabulary"]["min_count"] == 2


def test_steps_do_not_change_the_vectors(
    folders: dict[str, Path], extended: dict[str, Vectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extend_module, "VECTORS_PER_STEP", 4)
    vectors = extend(folders["default"], NEW_TEXT)
    for name in ("rows", "columns"):
        np.testing.assert_allclose(getattr(vectors, name), getattr(extended["default"], name), rtol=1e-5, atol=1e-6)


def forget_counting(folder: Path, target: Path) -> Path:
    """Return a copy of a folder without the record of its counting, as if its matrix was imported."""
    shutil.copytree(folder, target)
    manifest = unseal((target / MANIFEST).read_bytes())
    del manifest["facts"]["counted_with"]
    (target / MANIFEST).write_bytes(seal(manifest))
    return target


def test_a_folder_without_a_record_of_its_counting_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="imported: no record of how its text was counted; pass what swivel run"):
        extend(forget_counting(folders["fast"], tmp_path / "imported"), NEW_TEXT)


@pytest.mark.parametrize(
    ("setting", "recorded"),
    [
        ({"tokenizer": "whitespace"}, "words"),
        ({"lowercase": False}, True),
        ({"keep_underscores": True}, False),
        ({"unit": "sentence"}, "line"),
        ({"phrases": "npmi"}, "none"),
        ({"phrase_passes": 2}, 1),
        ({"window": 3}, 10),
        ({"weight": "uniform"}, "harmonic"),
        ({"oov": "gap"}, "drop"),
    ],
)
def test_settings_that_give_other_counts_are_refused(
    setting: dict[str, Any], recorded: object, folders: dict[str, Path]
) -> None:
    (name,) = setting
    with pytest.raises(
        ConfigError, match=rf"{name} must be {recorded!r} as in the training of .*; omit {name}"
    ) as caught:
        extend(folders["fast"], NEW_TEXT, **setting)
    assert caught.value.arguments == (name,)


def test_the_file_of_new_text_may_have_another_encoding(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("\n".join(["caf\xe9 red", "caf\xe9 blue"] * 5).encode("latin-1"))
    assert "caf\xe9" in extend(folders["fast"], tmp_path / "latin", encoding="latin-1")


def test_settings_that_differ_from_the_training_are_rejected(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"window must be 10 as in the training of .*, got 5; omit window"):
        extend(folders["fast"], NEW_TEXT, window=5)
    assert "teal" in extend(folders["fast"], NEW_TEXT, window=10)


def test_unknown_setting_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="'dim' is not a setting here"):
        extend(folders["fast"], NEW_TEXT, dim=3)


# Vectors that cannot be extended


def test_files_of_other_tools_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    swivel.export(Vectors.load(folders["fast"]), tmp_path / "vectors.bin")
    with pytest.raises(ConfigError, match=r"vectors.bin: vectors of another tool have no columns"):
        extend(tmp_path / "vectors.bin", NEW_TEXT)


def test_vectors_without_training_settings_are_rejected(folders: dict[str, Path], tmp_path: Path) -> None:
    vectors = Vectors.load(folders["fast"])
    vectors.replace(settings={}).save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="saved: no record of how rows and columns were trained"):
        extend(tmp_path / "saved", NEW_TEXT)
    with pytest.raises(ConfigError, match="vectors: no record of how rows and columns were trained and combined"):
        extend(vectors.align(vectors), NEW_TEXT)  # They are no longer sums of rows and columns.


def test_vectors_without_sums_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "no-sums"
    shutil.copytree(folders["fast"], target)
    manifest = unseal((target / MANIFEST).read_bytes())
    del manifest["parts"]["column_sums.npy"]
    (target / MANIFEST).write_bytes(seal(manifest))
    with pytest.raises(ConfigError, match="no columns or no sums of rows and columns"):
        extend(target, NEW_TEXT)


def test_columns_that_are_not_words_are_rejected(tmp_path: Path) -> None:
    spec = MatrixSpec(rows=Vocabulary(["a", "b"]), columns=Vocabulary(["x", "y", "z"]))
    with MatrixBuilder(tmp_path / "matrix", spec, memory_bytes=1 << 20) as builder:
        builder.add([0, 1, 0], [2, 0, 1], [5, 1, 2])
        matrix = builder.finish()
    train(matrix, tmp_path / "vectors", dim=2, epochs=1, backend="reference")
    with pytest.raises(ConfigError, match=r"its columns are not words"):
        extend(tmp_path / "vectors", NEW_TEXT)


def test_result_does_not_replace_the_extended_folder(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"the output would replace the input .*; choose another output"):
        extend(folders["fast"], NEW_TEXT, folders["fast"], options=RunOptions(overwrite=True))


def test_a_string_is_not_a_list_of_words(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="the Path of a file, got the text 'lamb'"):
        extend(folders["fast"], NEW_TEXT, vocabulary="lamb")


# The command line


def show(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="swivel")


def test_verb_extends(folders: dict[str, Path], extended: dict[str, Vectors], text: Path, tmp_path: Path) -> None:
    ended = show("extend", folders["fast"], text, "-o", tmp_path / "out")
    assert ended.exit_code == 0
    assert ended.stdout == f"{tmp_path / 'out'}: 21 vectors of 4 dimensions\n"
    assert "1,800 tokens, 3 new words" in ended.stderr
    assert Vectors.load(tmp_path / "out").vectors.tobytes() == extended["fast"].vectors.tobytes()


def test_verb_takes_a_list_and_settings(folders: dict[str, Path], text: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("lamb\ncat\n")
    ended = show("extend", folders["fast"], text, "-o", tmp_path / "out", "--vocabulary", tmp_path / "words", "--json")
    assert json.loads(ended.stdout)["tokens"] == 19
    ended = show("extend", folders["fast"], text, "-o", tmp_path / "other", "--window", 3)
    assert isinstance(ended.exception, SwivelError)
    assert "window must be 10 as in the training" in str(ended.exception)
