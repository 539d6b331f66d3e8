"""Vectors of texts: the compiled encoder against a plain one, the common component, exports and the command."""

from __future__ import annotations

import copy
import itertools
import lzma
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import swivel
from fuzz.tokenizer_reference import split_units
from swivel.cli.main import cli
from swivel.config import CorpusConfig
from swivel.corpus.text_numbers import TextNumbering
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, CorpusError, FolderExists, StorageError, SwivelWarning
from swivel.vectors import Vectors, VectorTable, text_encoder
from swivel.vectors.formats import export

WORDS = ["the", "cat", "sat", "don't", "naïve", "中文", "state-of-the-art", "mat"]
COUNTS = [500, 40, 30, 20, 10, 5, 3, 2]
TEXTS = ["The cat sat.", "", "Don’t! The naïve\ncat", "unheard of", "中文 state-of-the-art", "the the the"]


def make(words: list[str] = WORDS, counts: list[int] | None = COUNTS, dim: int = 6) -> Vectors:
    values = np.random.default_rng(5).standard_normal((len(words), dim), dtype=np.float32)
    return Vectors(VectorTable(Vocabulary(words, counts), values))


def encode_plainly(vectors: Vectors, text: str, smoothing: float, common: np.ndarray) -> np.ndarray:
    """Return the vector of a text as its definition says, in float64."""
    total = vectors.vocabulary.counts.sum()
    known = [word for unit in split_units(text, CorpusConfig()) for word in unit if word in vectors]
    result = np.zeros(vectors.dim)
    for word in known:
        share = vectors.vocabulary.counts[vectors.vocabulary.id(word)] / total
        result += smoothing / (smoothing + share) * vectors[word].astype(float) / len(known)
    return result - common.T @ (common @ result)


def random_text(rng: np.random.Generator) -> str:
    pieces = [*WORDS, "CAT", "dog", "\n", "?!", "\u00ad", "-", "x_y", "\ud800", "٣", "हिन्दी"]
    return " ".join(rng.choice(pieces, rng.integers(0, 12)))


@pytest.mark.parametrize("unit", ["line", "sentence", "document"])
@pytest.mark.parametrize("tokenizer", ["words", "whitespace"])
def test_the_numbers_of_texts_are_those_of_the_plain_tokenizer(
    unit: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swivel.corpus.text_numbers._MAX_UNKNOWN", 2)
    rng = np.random.default_rng(1)
    config = CorpusConfig(unit=unit, tokenizer=tokenizer)
    numbering = TextNumbering(WORDS, config)

    for _ in range(20):
        given = [random_text(rng) for _ in range(9)]
        numbers, ends, unknown = numbering.number(given)
        names = [*WORDS, *unknown]
        found = [[names[n] for n in part] for part in np.split(numbers, ends[:-1])]
        clean = [text.replace("\ud800", " ") for text in given]
        assert found == [[word for each in split_units(text, config) for word in each] for text in clean]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("smoothing", "components"), [(1e-3, 1), (0.05, 0), (0.5, 2)])
def test_a_vector_is_the_weighted_mean_without_the_common_components(
    smoothing: float, components: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_encoder, "TEXTS_PER_BATCH", 4)
    vectors = make()
    common = text_encoder.find_common_components(
        vectors, text_encoder.weigh_words(vectors.vocabulary.counts, smoothing), components
    )
    assert np.allclose(common @ common.T, np.eye(components), atol=1e-5)

    encoded = vectors.encode(iter(TEXTS), smoothing=smoothing, components=components, threads=threads)
    expected = [encode_plainly(vectors, text, smoothing, common) for text in TEXTS]
    assert encoded.dtype == np.float32
    assert np.allclose(encoded, expected, atol=1e-5)
    assert not encoded[[1, 3]].any()


def test_the_common_component_is_that_of_random_texts() -> None:
    vectors = make()
    weights = text_encoder.weigh_words(vectors.vocabulary.counts, 0.1)
    common = text_encoder.find_common_components(vectors, weights, 1)[0]

    rng = np.random.default_rng(3)
    shares = vectors.vocabulary.counts / vectors.vocabulary.counts.sum()
    drawn = rng.choice(len(WORDS), (20_000, 10), p=shares)
    means = (vectors.vectors * weights[:, None])[drawn].mean(axis=1)
    first = np.linalg.svd(means, full_matrices=False)[2][0]
    assert abs(first @ common) > 0.999


@pytest.mark.parametrize(("variance", "expected"), [(9.5, [1, 0]), (10.5, [0, 1])])
def test_the_random_texts_have_ten_words(variance: float, expected: list[float]) -> None:
    """The mean of n words (1, s) or (1, -s), drawn with the same probability, has the second moments 1 and s^2 / n."""
    values = np.array([[1, variance**0.5], [1, -(variance**0.5)]], np.float32)
    vectors = Vectors(VectorTable(Vocabulary(["a", "b"], [1, 1]), values))
    common = text_encoder.find_common_components(vectors, np.ones(2, np.float32), 1)
    assert np.allclose(np.abs(common), [expected], atol=1e-5)


def test_without_counts_a_vector_is_the_plain_mean() -> None:
    vectors = make(counts=None)
    assert np.allclose(vectors.encode(["the cat"])[0], (vectors["the"] + vectors["cat"]) / 2, atol=1e-6)
    with_counts = make()
    assert np.allclose(with_counts.encode(["the cat"], smoothing=np.inf, components=0), vectors.encode(["the cat"]))


def test_a_text_has_the_same_vector_in_every_batch_and_missing_texts_have_zeros() -> None:
    vectors = make()
    alone = [vectors.encode([text])[0] for text in TEXTS]
    assert np.allclose(vectors.encode(TEXTS * 3), np.array(alone * 3), atol=1e-6)
    assert not vectors.encode([None, float("nan")]).any()  # type: ignore[list-item]
    assert vectors.encode([]).shape == (0, 6)
    assert np.allclose(np.linalg.norm(vectors.encode(TEXTS[:1], normalize=True)), 1)


def test_unknown_words_are_guessed() -> None:
    words = ["".join(letters) for letters in itertools.product("bdgk", "aeiou", "lmnr", "aeiou", "st")]
    words += [word + "s" for word in words]
    vectors = make(words, list(range(len(words), 0, -1))).with_subwords()
    encoded = vectors.encode([f"{words[3]} zalaser zalaser", "zalaser", words[3], ""], components=0, smoothing=np.inf)
    assert vectors.subwords is not None
    guess = vectors.subwords.guess(["zalaser"])[0]
    assert np.allclose(encoded[0], (vectors[words[3]] + 2 * guess) / 3, atol=1e-5)
    assert np.allclose(encoded[1], guess, atol=1e-6)
    assert np.allclose(encoded[2], vectors[words[3]], atol=1e-6)
    assert not encoded[3].any()
    assert not vectors.encode(["zalaser"], guess=False).any()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="texts must be a list of strings, got the text 'the cat'"):
        make().encode("the cat")
    with pytest.raises(ConfigError, match="smoothing must be a positive number, got 0"):
        make().encode([], smoothing=0)
    with pytest.raises(ConfigError, match="components must be an integer of 0 or more, got -1"):
        make().encode([], components=-1)
    for wrong in (0, -1, 1.5):
        with pytest.raises(ConfigError, match=f"threads must be .*, got {wrong}"):
            make().encode(["the cat"], threads=wrong)  # type: ignore[arg-type]
    for table in ({"a": 1}, pandas.DataFrame({"a": ["the cat"]})):
        with pytest.raises(CorpusError, match=r"texts must be a column of a table, such as table\['text'\], got a "):
            make().encode(table)
    with pytest.raises(CorpusError, match="item 2: expected a string like the items before, got int"):
        make().encode(["a", 3])  # type: ignore[list-item]


def test_texts_are_split_as_the_training_was(tmp_path: Path) -> None:
    trained = swivel.run(["Red_Wine a b", "a b Red_Wine"] * 5, tmp_path, tokenizer="whitespace", lowercase=False, dim=2)
    assert np.allclose(trained.encode(["Red_Wine!", "x Red_Wine"], components=0)[0], 0)
    assert trained.encode(["Red_Wine!", "x Red_Wine"], components=0)[1].any()
    assert text_encoder.find_tokenizer(make(["new york", "Oil"], None)) == CorpusConfig(
        tokenizer="whitespace", lowercase=False
    )
    assert text_encoder.find_tokenizer(make()) == CorpusConfig(tokenizer="words")


def test_copies_split_texts_as_the_training_did_after_its_folder_is_gone(tmp_path: Path) -> None:
    sentences = ["in new york, the old town", "a red wine of new york", "old wine in the red town"] * 6
    counts = swivel.count(sentences, min_count=1, phrases="word2vec", phrase_threshold=0.5)
    trained = swivel.train(counts, tmp_path / "v", dim=4, epochs=3)
    asked = ["Red, wine!", "In New York."]
    expected = trained.encode(asked)
    assert "new_york" in trained and np.linalg.norm(expected, axis=1).all()

    loaded = swivel.load(tmp_path / "v")
    pickled = pickle.dumps(swivel.load(tmp_path / "v"))
    loaded.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "v")

    saved = swivel.load(tmp_path / "saved")
    for same in (loaded, pickle.loads(pickled), saved, copy.deepcopy(loaded)):
        assert np.array_equal(same.encode(asked), expected)
    aligned = saved.align(saved, words=list(saved)).encode(asked)
    assert np.allclose(np.linalg.norm(aligned, axis=1), np.linalg.norm(expected, axis=1), rtol=1e-4)


@pytest.mark.parametrize("format", ["model2vec", "sentence-transformers"])
@pytest.mark.parametrize(
    "corpus", [None, {"phrases": "word2vec"}, {"keep_underscores": True}, {"tokenizer": "whitespace"}]
)
def test_model2vec_gives_texts_the_same_vectors(tmp_path: Path, format: str, corpus: dict[str, Any] | None) -> None:
    from model2vec import StaticModel

    vectors = make()
    if corpus:
        vectors = make([*WORDS, "new_york", "York"], [*COUNTS, 1, 1]).replace(settings={"corpus": corpus})
    export(vectors, tmp_path / "m", format=format)
    given = [*TEXTS, "in New_York, the cat.", "x York"]
    if corpus and "phrases" in corpus:
        given = TEXTS
    assert np.allclose(StaticModel.from_pretrained(tmp_path / "m").encode(given), vectors.encode(given), atol=1e-6)


def test_the_exported_tokenizer_is_that_of_the_training_if_a_vector_of_zeros_is_left_out(tmp_path: Path) -> None:
    from model2vec import StaticModel

    vectors = make([*WORDS, "new_york", "York"], [*COUNTS, 1, 1])
    values = np.array(vectors.vectors)
    values[-1] = 0
    settings = {"corpus": {"keep_underscores": True}}
    vectors = Vectors(VectorTable(vectors.vocabulary, values), settings=settings)

    with pytest.warns(SwivelWarning, match="zero"):
        export(vectors, tmp_path / "m", format="model2vec")
    given = ["in New_York, the cat."]
    # The word that is left out is one of 612, so the shares of the others differ a little.
    assert np.allclose(StaticModel.from_pretrained(tmp_path / "m").encode(given), vectors.encode(given), atol=1e-3)


def test_the_command_writes_one_row_per_line(tmp_path: Path) -> None:
    vectors = make()
    vectors.save(tmp_path / "v")
    lines = ["The cat", "", "sat\r", "naïve mat"]
    (tmp_path / "t.txt.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    command = ["encode", str(tmp_path / "v"), str(tmp_path / "t.txt.xz"), "-o", str(tmp_path / "t.npy")]

    done = CliRunner().invoke(cli, [*command, "--components", "0"], catch_exceptions=False)
    assert done.stdout == f"{tmp_path / 't.npy'}: 4 x 6\n"
    assert np.array_equal(np.load(tmp_path / "t.npy"), vectors.encode(lines, components=0))

    assert isinstance(CliRunner().invoke(cli, command).exception, FolderExists)
    assert CliRunner().invoke(cli, [*command, "--overwrite", "--normalize"]).exit_code == 0
    assert np.array_equal(np.load(tmp_path / "t.npy"), vectors.encode(lines, normalize=True))
    missing = [*command[:-1], str(tmp_path / "missing" / "t.npy")]
    assert isinstance(CliRunner().invoke(cli, missing).exception, StorageError)
    is_folder = CliRunner().invoke(cli, [*command[:-1], str(tmp_path), "--overwrite"]).exception
    assert str(is_folder) == f"{tmp_path} is a folder: pass the path of a file"


def test_the_command_reads_the_encoding_of_the_training_and_refuses_invalid_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swivel.corpus.streams.PIECE_BYTES", 4)
    vectors = make()
    vectors.save(tmp_path / "utf-8")
    vectors.replace(settings={"corpus": {"encoding": "latin-1"}}).save(tmp_path / "latin-1")
    lines = ["naïve cat", "the naïve naïve naïve mat"]
    (tmp_path / "t.txt").write_bytes("\n".join(lines).encode("latin-1"))

    def encode(folder: str, *flags: str) -> np.ndarray:
        out = str(tmp_path / "t.npy")
        command = ["encode", str(tmp_path / folder), str(tmp_path / "t.txt"), "-o", out, "--overwrite", *flags]
        CliRunner().invoke(cli, command, catch_exceptions=False)
        return np.asarray(np.load(out))

    assert np.array_equal(encode("latin-1"), vectors.encode(lines))
    assert np.array_equal(encode("utf-8", "--encoding", "latin-1"), vectors.encode(lines))
    split = [line.replace("ï", " ") for line in lines]
    assert np.array_equal(encode("utf-8", "--errors", "replace"), vectors.encode(split))
    with pytest.raises(CorpusError, match=r"t\.txt, line 1: not valid UTF-8 \(byte 0xef\); pass encoding"):
        encode("utf-8")


def test_encoding_is_a_step_of_a_scikit_learn_pipeline() -> None:
    vectors = make()
    model = make_pipeline(clone(FunctionTransformer(vectors.encode)), LogisticRegression(C=1e3))
    model.fit(["cat", "sat", "cat sat", "naïve", "mat", "naïve mat"], [0, 0, 0, 1, 1, 1])
    assert model.predict(["the cat", "a mat"]).tolist() == [0, 1]
