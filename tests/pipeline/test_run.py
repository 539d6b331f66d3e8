"""Text to vectors in one call: settings, finished stages, temporary folders, odd texts."""

from __future__ import annotations

import glob
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import swivel
from message_recorder import MessageRecorder
from swivel.config import RECIPES
from swivel.corpus.sources import Texts
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.errors import (
    ConfigError,
    CorpusError,
    CountsError,
    FolderExists,
    StorageError,
    SwivelWarning,
    VocabularyError,
)
from swivel.pipeline.count import count
from swivel.pipeline.run import run
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task
from swivel.storage.manifest import read_manifest
from swivel.vectors import Vectors

LINES = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "the mat and the log"] * 3
QUICK: dict[str, Any] = {"dim": 4, "epochs": 2, "backend": "cpu", "dtype": "float32"}


class Interrupting(MessageRecorder, Task):
    """Sends Ctrl-C to this process after so many rounds of training."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.left -= 1 if note else 0
        if note and self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n".join(LINES) + "\n")
    return file


@pytest.fixture
def temporaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made."""
    folder = tmp_path / "temporaries"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def times(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def bits(vectors: Vectors) -> tuple[bytes, bytes]:
    assert vectors.columns is not None
    return vectors.vectors.tobytes(), vectors.columns.tobytes()


# Settings


def test_settings_of_every_stage_are_taken_by_name(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    vectors = run(text, out, min_count=2, window=3, columns="symmetric", lowercase=False, combine="rows", **QUICK)
    assert vectors.dim == 4
    assert vectors.columns_per_row == 1
    assert vectors.vectors.tobytes() == vectors.rows.tobytes()
    config = count(
        text, out / "matrix", min_count=2, window=3, columns="symmetric", lowercase=False
    ).config  # the same: not counted again
    assert (config["count"]["window"], config["vocabulary"]["min_count"]) == (3, 2)
    assert config["corpus"]["lowercase"] is False


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: count(LINES, windw=3), "'windw' is not a setting here; did you mean window?"),
        (lambda: count(LINES, dim=3), "'dim' is not a setting here; pass dim to swivel.train"),
        (lambda: count(LINES, color=3), "'color' is not a setting here; known are columns, .*"),
        (lambda: swivel.add(color=3), "'color' is not a setting here; known are cluster, .*"),
        (lambda: count(LINES, progress=3), "progress must be a Progress, True or False, got 3"),
        (lambda: count(LINES, cluster=3), "cluster must be a ClusterConfig, got 3"),
        (lambda: count(LINES, vocabulary=cast(Any, ["a", 3])), "vocabulary must be a list of tokens, got 3 among them"),
        (lambda: run("nowhere", "nowhere", vector_size=3), "'vector_size' .*; did you mean dim?"),
        (lambda: run("nowhere", "nowhere", workers=3), "'workers' .*; did you mean threads?"),
        (lambda: run("nowhere", "nowhere", windw=3), "did you mean window?"),
        (lambda: run("nowhere", "nowhere", dimm=3), "'dimm' is not a setting here; did you mean dim?"),
    ],
)
def test_unknown_setting_is_refused_with_a_hint(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", "[?]")):
        call()


def test_wrong_settings_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="dim must be a positive integer, got 0"):
        run("nowhere", "nowhere", dim=0)
    with pytest.raises(ConfigError, match="window must be a positive integer, got 0"):
        count("nowhere", window=0)


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="recipe must be one of paper, fast, default, table, graph, got 'best'"):
        count(LINES, recipe="best")


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_gives_the_settings_that_are_not_named(recipe: str, text: Path, tmp_path: Path) -> None:
    vectors = run(text, tmp_path / "out", recipe=recipe, min_count=1, **QUICK)
    assert vectors.columns_per_row == {"default": 4}.get(recipe, 1)
    assert np.isfinite(vectors.vectors).all()
    assert vectors.dim == 4


# Vocabularies


def test_own_vocabulary_is_taken_as_it_is() -> None:
    matrix = count(LINES, vocabulary=["dog", "cat", "unicorn"], columns="symmetric")
    assert matrix.rows.tokens == ("dog", "cat", "unicorn")
    assert matrix.rows.counts.tolist() == [6, 6, 0]
    assert matrix.count("dog", "cat") == 3


def test_own_vocabulary_may_be_a_vocabulary_or_an_iterator() -> None:
    words = ["cat", "dog"]
    tokens = [count(LINES, vocabulary=given).rows.tokens for given in (Vocabulary(words), iter(words))]
    assert tokens == [("cat", "dog")] * 2


def test_own_vocabulary_without_a_word_of_the_text_is_refused() -> None:
    with pytest.raises(VocabularyError, match="none of the 2 listed tokens is in the text; the text is converted to"):
        count(LINES, vocabulary=["CAT", "DOG"])
    with pytest.raises(VocabularyError, match=r"none of the 1 listed tokens is in the text$"):
        count(LINES, vocabulary=["unicorn"], lowercase=False)


def test_vocabulary_given_as_one_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^vocabulary must be a list of tokens or the Path of a file, got the text"):
        count(LINES, vocabulary="words.txt")


def test_texts_of_one_word_each_are_refused() -> None:
    with pytest.raises(CountsError, match=r"every line has only one word, .* pass tokens as one list per text"):
        count(["cat", "dog"] * 10)


@pytest.mark.parametrize("texts", [[], [""], ["...", "!?"], [[]]])
def test_text_without_tokens_is_refused(texts: list[Any]) -> None:
    with pytest.raises(VocabularyError, match=r"^the text has no tokens$"):
        count(texts)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(VocabularyError, match=r"^the text has no tokens$"):
        count(tmp_path / "empty.txt", tmp_path / "matrix")


def test_text_below_the_least_count_is_refused_with_its_commonest_count() -> None:
    with pytest.raises(VocabularyError, match=r"no token occurs 5 times or more \(the most frequent: 2\)"):
        count(["b a", "a"])


# Stages that are finished


def test_finished_stages_are_not_done_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run(text, out, min_count=1, **QUICK)
    before, heard = times(out), MessageRecorder()
    again = run(text, out, min_count=1, options=RunOptions(progress=heard), **QUICK)
    assert times(out) == before
    assert heard.lines == [f"{out / name}: finished already, nothing to do" for name in ("matrix", "vectors")]
    assert bits(again) == bits(first)


def test_leftovers_are_swept_from_finished_stages(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(path: Path) -> None:
        raise KeyboardInterrupt  # as if killed after the manifest was written

    settings: dict[str, Any] = {"dim": 4, "epochs": 2, "min_count": 1}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("swivel.pipeline.train_job.remove_checkpoints", end)
        run(text, tmp_path / "work", **settings)

    for name in ("lock", "matrix/lock", "vectors/lock", "vectors/scratch-00000000-1-abcdefgh"):
        (tmp_path / "work" / name).write_text('{"pid": 1}')
    run(text, tmp_path / "work", **settings)
    run(text, tmp_path / "calm", **settings)
    listings = [{file.relative_to(path) for file in path.rglob("*")} for path in tmp_path.glob("[cw]*")]
    assert listings[0] == listings[1]


def test_what_does_not_change_the_result_does_not_do_it_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(text, out, min_count=1, **QUICK)
    before = times(out)
    run(text, out, min_count=1, options=RunOptions(threads=1, memory="100MB"), checkpoint_minutes=9, **QUICK)
    assert times(out) == before


def test_finished_folder_with_other_settings_is_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(text, out, min_count=1, **QUICK)
    before = times(out)
    with pytest.raises(FolderExists, match=r"matrix: finished already with other settings \(count.window\); choose"):
        run(text, out, min_count=1, window=2, **QUICK)
    with pytest.raises(FolderExists, match=r"vectors: .* settings \(train.dim, vectors.combine\); choose"):
        run(text, out, min_count=1, combine="rows", **{**QUICK, "dim": 5})
    assert times(out) == before


def test_finished_folder_of_another_text_is_refused(text: Path, tmp_path: Path) -> None:
    count(text, tmp_path / "matrix")
    text.write_text("quite another text\n" * 9)
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        count(text, tmp_path / "matrix")


def test_finished_folder_of_another_vocabulary_is_refused(text: Path, tmp_path: Path) -> None:
    count(text, tmp_path / "matrix", vocabulary=["cat", "dog"])
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        count(text, tmp_path / "matrix", vocabulary=["cat", "mat"])


def test_finished_folder_of_another_stage_is_refused(text: Path, tmp_path: Path) -> None:
    matrix = count(text, tmp_path / "matrix")
    count(text, tmp_path / "other")
    with pytest.raises(FolderExists, match="other: already holds matrix; choose another folder"):
        train(matrix, tmp_path / "other", **QUICK)


def test_finished_folder_is_refused_before_a_text_in_memory_is_read(text: Path, tmp_path: Path) -> None:
    count(text, tmp_path / "matrix")
    with pytest.raises(FolderExists, match="from an iterator or a pipe cannot be compared"):
        count(iter(LINES), tmp_path / "matrix")


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda lines: [line.split() for line in lines]])
def test_a_call_with_the_same_texts_in_memory_is_finished(kind: Callable[[list[str]], Any], tmp_path: Path) -> None:
    for stage in (count, run):
        out = tmp_path / stage.__name__
        stage(kind(LINES), out, min_count=1, **(QUICK if stage is run else {}))
        before = times(out)
        stage(kind(LINES), out, min_count=1, **(QUICK if stage is run else {}))
        assert times(out) == before
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        count(kind([*LINES[1:], "a log"]), tmp_path / "count", min_count=1)
    assert count(kind(LINES[1:]), tmp_path / "count", min_count=1, overwrite=True).path == tmp_path / "count"


def test_without_a_folder_the_vectors_are_those_of_one(text: Path, tmp_path: Path, temporaries: Path) -> None:
    stored = run(text, tmp_path / "out", min_count=1, **QUICK)
    for texts in (LINES, text):
        vectors = run(texts, min_count=1, **QUICK)
        assert vectors.path is None
        assert bits(vectors) == bits(stored)
    assert list(temporaries.iterdir()) == []


@pytest.mark.parametrize("recipe", ["default", "fast", "paper"])
def test_training_takes_the_recipe_that_a_text_was_counted_with(recipe: str) -> None:
    matrix = count(LINES, recipe=recipe, min_count=1)
    heard = MessageRecorder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vectors = train(matrix, progress=heard, **QUICK)
    assert bits(vectors) == bits(train(matrix, recipe=recipe, **QUICK))
    assert any(f"with the recipe {recipe}" in line for line in heard.lines) == (recipe != "default")


def test_a_flat_list_of_words_gets_a_warning() -> None:
    words = [word for line in LINES for word in line.split()]
    with pytest.raises(CountsError, match="every line has only one word, so no words occur together"):
        count(words, min_count=1)
    with pytest.warns(SwivelWarning, match="nearly every line has only one word.*pass tokens as one list per text"):
        count([*words, "cat/dog"], min_count=1)


def test_training_takes_the_matrix_in_the_folder_of_a_run(text: Path, tmp_path: Path) -> None:
    trained = run(text, tmp_path / "work", min_count=1, **QUICK)
    assert bits(train(tmp_path / "work", **QUICK)) == bits(trained)


def test_overwrite_makes_finished_stages_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(text, out, min_count=1, **QUICK)
    before = times(out)
    vectors = run(text, out, min_count=1, window=2, options=RunOptions(overwrite=True), **{**QUICK, "dim": 5})
    after = times(out)
    assert vectors.dim == 5
    assert all(after[name] > before[name] for name in before)
    assert not list(out.rglob("scratch-*"))


def test_run_refuses_a_file_as_its_folder(text: Path) -> None:
    with pytest.raises(StorageError, match=r"text.txt: not a folder"):
        run(text, text)


@pytest.mark.parametrize("stage", [count, run])
def test_folder_below_a_file_is_refused(stage: Callable[..., object], text: Path) -> None:
    with pytest.raises(StorageError, match="Not a directory"):
        stage(text, text / "below" / "out")


# Texts


def test_paths_texts_and_tokens_give_the_same_matrix(text: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    same: list[Texts] = [
        text,
        str(text),
        [text, tmp_path / "empty.txt"],
        LINES,
        iter(LINES),
        [line.split() for line in LINES],
        (line.split() for line in LINES),
    ]
    cells = [count(texts, min_count=1).to_scipy().toarray() for texts in same]
    assert all(np.array_equal(cells[0], other) for other in cells[1:])


def test_missing_file_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file or folder"):
        count(tmp_path / "missing.txt", tmp_path / "matrix")
    assert not (tmp_path / "matrix").exists()


def test_a_list_of_names_of_files_reads_the_files(text: Path) -> None:
    from_names = count(glob.glob(f"{text.parent}/{text.name}"), min_count=1)  # noqa: PTH207 (it returns strings)
    assert from_names.rows.tokens == count(text, min_count=1).rows.tokens
    assert from_names.fingerprint == count([text], min_count=1).fingerprint


def test_an_iterator_of_glob_reads_the_files(text: Path) -> None:
    names = glob.iglob(f"{text.parent}/{text.name}")  # noqa: PTH207 (it returns strings)
    assert count(names, min_count=1).fingerprint == count([text], min_count=1).fingerprint
    assert "txt" in count(iter([str(text)]), min_count=1).rows  # any other iterator is texts


def test_underscores_are_kept_if_asked() -> None:
    assert "new_york" in count(["new_york is big"] * 5, keep_underscores=True).rows
    assert "new_york" not in count(["new_york is big"] * 5).rows
    assert "new_york" in count(["new_york is big"] * 5, tokenizer="whitespace").rows


def test_training_says_if_the_recipe_counts_other_columns() -> None:
    def messages(counted: dict[str, Any], recipe: str) -> list[str]:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            train(count(LINES, min_count=1, **counted), recipe=recipe, **QUICK)
        return [str(warning.message) for warning in heard]

    assert messages({}, "fast") == [
        "the matrix was counted with directional-bands columns, but the recipe fast has symmetric ones; for these, "
        "count again with the recipe fast, or train with default"
    ]
    assert messages({"columns": "bands"}, "default")[0].endswith("count again with the recipe default")
    assert messages({}, "default") == messages({"recipe": "fast"}, "paper") == []


def test_run_with_other_columns_than_those_of_the_recipe_says_nothing_about_it(tmp_path: Path) -> None:
    heard = MessageRecorder()
    run(LINES, tmp_path, columns="symmetric", min_count=1, options=RunOptions(progress=heard), **QUICK)
    assert not [line for line in heard.lines if "recipe" in line]


def test_texts_with_odd_characters_are_texts() -> None:
    assert "xyz" in count([*LINES, "\0", "x" * 10_000, "xyz and/or notes.txt"], min_count=1).rows


def test_word_that_is_always_alone_has_a_zero_vector_and_no_neighbors() -> None:
    for recipe in RECIPES:
        vectors = train(count([*LINES, *["hermit"] * 20], recipe=recipe), recipe=recipe, **QUICK)
        assert not vectors["hermit"].any()
        with pytest.raises(ConfigError, match="'hermit' has no neighbors: it has no co-occurrences"):
            vectors.nearest("hermit")
        assert vectors.is_zero.sum() == 1
        others = [word for word in vectors if word != "hermit"]
        assert all("hermit" not in [near.token for near in vectors.nearest(word, count=99)] for word in others)


# Temporary folders


def test_without_a_folder_results_are_in_memory(temporaries: Path) -> None:
    matrix = count(LINES)
    vectors = train(matrix, **QUICK)
    assert (matrix.path, vectors.path) == (None, None)
    assert list(temporaries.iterdir()) == []
    assert np.isfinite(vectors.vectors).all()


def test_temporary_folders_go_when_a_stage_fails(temporaries: Path) -> None:
    with pytest.raises(VocabularyError):
        count(["a b"])
    matrix = count(LINES)
    kept = sorted(temporaries.iterdir())
    with pytest.raises(KeyboardInterrupt):
        train(matrix, options=RunOptions(progress=Interrupting(1)), **QUICK)
    assert sorted(temporaries.iterdir()) == kept


# Training


def test_training_goes_on_after_an_interruption_as_if_there_was_none(text: Path, tmp_path: Path) -> None:
    settings = {"min_count": 1, "block_size": 4, **QUICK, "epochs": 4}
    whole = run(text, tmp_path / "whole", **settings)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(text, out, options=RunOptions(progress=Interrupting(5)), **settings)
    assert not (out / "vectors" / "manifest.json").exists()
    heard = MessageRecorder()
    resumed = run(text, out, options=RunOptions(progress=heard, threads=1), **settings)
    assert bits(resumed) == bits(whole)
    assert any(line.startswith("resuming after") for line in heard.lines)
    assert {file.name for file in (out / "vectors").iterdir()} == {
        file.name for file in (tmp_path / "whole" / "vectors").iterdir()
    }


def test_unfinished_run_with_other_settings_is_kept_and_named(text: Path, tmp_path: Path) -> None:
    settings = {"min_count": 1, "block_size": 4, **QUICK, "epochs": 4, "seed": 3}
    whole = run(text, tmp_path / "whole", **settings)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(text, out, options=RunOptions(progress=Interrupting(5)), **settings)
    before = times(out)

    kept = "holds an unfinished run with"
    with pytest.raises(FolderExists, match=rf"vectors: {kept} dim 4, seed 3; use the same settings to resume it, ch"):
        run(text, out, **{**settings, "seed": 5, "dim": 5})
    with pytest.raises(FolderExists, match=f"{kept} epochs 4; .* or pass overwrite=True"):
        train(out / "matrix", out / "vectors", block_size=4, seed=3, **{**QUICK, "epochs": None})
    other = count(text, tmp_path / "other", min_count=1, window=2)
    with pytest.raises(FolderExists, match="holds an unfinished run of another matrix; "):
        train(other, out / "vectors", block_size=4, seed=3, **{**QUICK, "epochs": 4})

    assert times(out) == before
    assert bits(run(text, out, **settings)) == bits(whole)


def test_unfinished_run_is_replaced_with_overwrite(text: Path, tmp_path: Path) -> None:
    matrix, settings = count(text, tmp_path / "matrix", min_count=1), {"block_size": 4, **QUICK, "epochs": 4}
    with pytest.raises(KeyboardInterrupt):
        train(matrix, tmp_path / "out", seed=3, options=RunOptions(progress=Interrupting(5)), **settings)
    replaced = train(matrix, tmp_path / "out", seed=5, options=RunOptions(overwrite=True), **settings)
    assert bits(replaced) == bits(train(matrix, tmp_path / "alone", seed=5, **settings))
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_damaged_matrix_is_refused_before_training(text: Path, tmp_path: Path) -> None:
    written = count(text, tmp_path / "matrix")
    damaged = tmp_path / "matrix" / "counts.npy"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    written.verify()  # What this process has just written is trusted; what it opens is not.
    for matrix in (tmp_path / "matrix", count(text, tmp_path / "matrix")):  # The second one is not counted again.
        with pytest.raises(StorageError, match=r"counts\.npy: checksum differs"):
            train(matrix, tmp_path / "vectors", **QUICK)
    assert not (tmp_path / "vectors").exists()


@pytest.fixture
def baskets(tmp_path: Path) -> Matrix:
    """Five customers in rows, three products in columns."""
    spec = MatrixSpec(
        rows=Vocabulary([f"customer {n}" for n in range(5)]), columns=Vocabulary(["tea", "milk", "nails"])
    )
    with MatrixBuilder(tmp_path / "baskets", spec, memory_bytes=1 << 20) as builder:
        builder.add(np.array([0, 0, 1, 2, 3, 4]), np.array([0, 1, 1, 0, 2, 2]), np.array([5, 4, 3, 2, 6, 3]))
        return builder.finish()


@pytest.mark.parametrize("recipe", RECIPES)
def test_matrix_of_two_vocabularies_trains_to_its_rows(baskets: Matrix, recipe: str) -> None:
    settings = {**QUICK, "epochs": 100}
    vectors = train(baskets, recipe=recipe, **settings)
    assert vectors.vectors.tobytes() == vectors.rows.tobytes()
    assert vectors.score("customer 3", "nails") > vectors.score("customer 3", "tea")
    assert vectors.score("customer 0", "tea") > vectors.score("customer 0", "nails")
    assert vectors.nearest("customer 3", count=1)[0].token == "customer 4"


@pytest.mark.parametrize("combine", ["sum", "parts"])
def test_matrix_of_two_vocabularies_has_nothing_to_combine(baskets: Matrix, combine: str) -> None:
    with pytest.raises(ConfigError, match=f"combine must be rows for a matrix whose columns .* got '{combine}'"):
        train(baskets, combine=combine, **QUICK)


def test_matrix_of_two_vocabularies_is_not_trained_again(baskets: Matrix, tmp_path: Path) -> None:
    first = train(baskets, tmp_path / "vectors", **QUICK)
    heard = MessageRecorder()
    again = train(baskets, tmp_path / "vectors", combine="rows", options=RunOptions(progress=heard), **QUICK)
    assert bits(first) == bits(again)
    assert heard.lines[-1] == f"{tmp_path / 'vectors'}: finished already, nothing to do"


def test_device_that_cannot_be_used_is_told_before_the_text_is_read(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield pytest.fail("was read")

    with pytest.raises(ConfigError, match="device 'cuda:77' cannot be used for counting"):
        count(texts(), tmp_path / "matrix", device="cuda:77")


def test_a_list_of_phrases_is_not_overwritten_by_a_result(tmp_path: Path) -> None:
    phrases = tmp_path / "out" / "vectors" / "phrases.txt"
    phrases.parent.mkdir(parents=True)
    phrases.write_text("new york\n")
    with pytest.raises(ConfigError, match=r"phrases\.txt"):
        run(["in new york city"] * 9, tmp_path / "out", min_count=1, dim=2, phrases=str(phrases))
    assert phrases.read_text() == "new york\n"


def test_vectors_that_are_the_rows_are_written_once(tmp_path: Path) -> None:
    matrix = count(["tea milk sugar", "milk cup tea"] * 3, min_count=1)
    trained = train(matrix, tmp_path / "vectors", combine="rows", dim=2, epochs=1)
    assert set(read_manifest(tmp_path / "vectors").facts["tensors"]) == {"header", "rows", "columns"}
    assert np.shares_memory(trained.vectors, trained.rows)
