"""Reading vectors from text files of other tools; errors have the line number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swivel.errors import StorageError
from swivel.vectors.formats import load, read_text


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "vectors.txt"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


@pytest.mark.parametrize(
    "text",
    [
        "2 3\nking 1 0.5 -2e-1\nqueen 0 1 2\n",
        "king 1 0.5 -2e-1\nqueen 0 1 2\n",
        "2 3\nking 1 0.5 -2e-1 \r\nqueen 0 1 2",
        "king\t1\t0.5\t-2e-1\nqueen\t0\t1\t2\n",
        "\ufeff2 3\nking 1 0.5 -2e-1\t\n queen  0 1 2\n",
    ],
)
def test_word2vec_and_glove_files_give_the_same_vectors(tmp_path: Path, text: str) -> None:
    vectors = read_text(write(tmp_path, text))
    assert vectors.vocabulary.tokens == ("king", "queen")
    assert np.array_equal(vectors.vectors, np.array([[1, 0.5, -0.2], [0, 1, 2]], np.float32))


def test_a_word_may_contain_spaces_and_unusual_line_separators(tmp_path: Path) -> None:
    vectors = read_text(write(tmp_path, "a 1 2\n. . . 3 4\nx\u0085y 5 6\n"))
    assert vectors.vocabulary.tokens == ("a", ". . .", "x\u0085y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 3\nking 1 0 0\nqueen 1 0\n", r"line 3: expected a word and 3 numbers, got 2: 'queen 1 0'"),
        ("king 1 0\nqueen 1 0 5\n", r"line 2: expected a word and 2 numbers, got more: 'queen 1 0 5'"),
        ("2 3\nking 1 0 0\nking 1 0 0\n", r"line 3: duplicate word 'king'"),
        ("2 3\nking 1 0 0\n 1 0 0\n", r"line 3: the word is empty"),
        ("king 1 0\n\nqueen 1 0\n", r"line 2: expected a word and 2 numbers, got 0: ''"),
        ("2 3\nking 1 x 0\n", r"line 2: 'x' is not a number, or the vector has more than 3 of them"),
        ("2 3\nking 1 nan 0\n", r"line 2: nan is not a finite float32"),
        ("2 3\nking 1 0 -1e39\n", r"line 2: -1e39 is not a finite float32"),
        ("1 3\nking 1 0 0\nqueen 1 0 0\n", r"line 3: the first line says 1 words, but the file has more"),
        ("3 3\nking 1 0 0\nqueen 1 0 0\n", r"line 3: the first line says 3 words, but the file has 2"),
        ("1 0\nking\n", r"line 1: the number of dimensions is 0"),
        ("king\n", r"line 1: expected a word and its numbers, got 'king'"),
        (b"1 2\n\xff 1 2\n", r"line 2: not valid UTF-8 \(byte 0xff\)"),
    ],
)
def test_malformed_lines_raise_errors_with_their_number(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(StorageError, match=rf"vectors\.txt, {message}$"):
        read_text(write(tmp_path, text))


@pytest.mark.parametrize("text", ["", "0 3\n"])
def test_a_file_without_vectors_raises_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(StorageError, match=r"vectors\.txt: the file has no vectors$"):
        read_text(write(tmp_path, text))


def test_a_long_line_is_shortened_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"got 'x{37}\.\.\.'$"):
        read_text(write(tmp_path, "x" * 100 + "\n"))


def test_a_missing_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere\.txt: no such file or folder"):
        read_text(tmp_path / "nowhere.txt")
    with pytest.raises(StorageError, match=r"nowhere\.txt: no such file or folder"):
        load(tmp_path / "nowhere.txt")


def test_vectors_are_opened_from_a_file_a_folder_and_the_folder_of_a_run(tmp_path: Path) -> None:
    file = write(tmp_path, "king 1 0.5\nqueen 0 1\n")
    read_text(file).save(tmp_path / "run" / "vectors")
    for path in (file, tmp_path / "run", str(tmp_path / "run" / "vectors")):
        vectors = load(path)
        assert vectors.vocabulary.tokens == ("king", "queen")
        assert vectors.vectors.tolist() == [[1, 0.5], [0, 1]]
