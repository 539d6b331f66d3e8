"""Other tools read exported vectors, and Swivel reads the files of other tools."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, StorageError, SwivelWarning, VocabularyError
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import export, fasttext_binary, from_gensim, load, to_gensim

WORDS = ["king", "queen", "don't", "state-of-the-art", "naïve", "中文"]


def make(labels: list[str], counts: list[int] | None = None, dim: int = 4) -> Vectors:
    values = np.random.default_rng(1).standard_normal((len(labels), dim)).astype(np.float32)
    return Vectors(VectorTable(Vocabulary(labels, counts), values))


@pytest.mark.parametrize(
    ("name", "binary", "header"), [("v.bin", True, True), ("v.vec", False, True), ("v", False, False)]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gensim leaves a file open
def test_gensim_reads_word2vec_and_glove_files(tmp_path: Path, name: str, binary: bool, header: bool) -> None:
    from gensim.models import KeyedVectors

    vectors = make([*WORDS, "👑"])
    export(vectors, tmp_path / name, format=None if header else "glove")
    read = KeyedVectors.load_word2vec_format(str(tmp_path / name), binary=binary, no_header=not header)
    assert tuple(read.index_to_key) == vectors.vocabulary.tokens
    assert read.vectors.tobytes() == vectors.vectors.tobytes()


@pytest.mark.parametrize(("name", "binary"), [("v.bin", True), ("v.txt", False)])
def test_files_that_gensim_writes_are_read(tmp_path: Path, name: str, binary: bool) -> None:
    keyed = to_gensim(make(WORDS))
    keyed.save_word2vec_format(str(tmp_path / name), binary=binary)
    read = load(tmp_path / name)
    assert list(read.vocabulary) == WORDS
    assert np.allclose(read.vectors, keyed.vectors, rtol=1e-6)
    assert not binary or read.vectors.tobytes() == keyed.vectors.tobytes()


def test_gensim_loads_its_own_format(tmp_path: Path) -> None:
    from gensim.models import KeyedVectors

    vectors = make([*WORDS, "olive oil", ""], counts=[8, 7, 6, 5, 4, 3, 2, 1])
    export(vectors, tmp_path / "v.kv")
    export(vectors, tmp_path / "same", format="gensim")

    read = KeyedVectors.load(str(tmp_path / "v.kv"))
    assert tuple(read.index_to_key) == vectors.vocabulary.tokens
    assert read.vectors.tobytes() == vectors.vectors.tobytes()
    assert read.get_vecattr("queen", "count") == 7
    assert read.most_similar("king", topn=3) == to_gensim(vectors).most_similar("king", topn=3)
    assert (tmp_path / "v.kv").read_bytes() == (tmp_path / "same").read_bytes()


def test_files_of_gensim_are_pickles_and_raise_an_error(tmp_path: Path) -> None:
    to_gensim(make(WORDS)).save(str(tmp_path / "v.kv"))
    for format in (None, "gensim"):
        with pytest.raises(
            StorageError, match=r"v\.kv: a pickle, which is never loaded; in gensim, call save_word2vec"
        ):
            load(tmp_path / "v.kv", format=format)


def test_conversion_to_keyed_vectors_and_back_preserves_vectors() -> None:
    vectors = make(["olive oil", "", "x"], counts=[3, 2, 1])
    keyed = to_gensim(vectors)
    assert keyed.get_vecattr("olive oil", "count") == 3
    back = from_gensim(keyed)
    assert back.vocabulary == vectors.vocabulary
    assert back.vectors.tobytes() == vectors.vectors.tobytes()
    assert from_gensim(to_gensim(make(["a"]))).vocabulary.counts.tolist() == [0]


def test_keys_that_are_not_strings_raise_an_error() -> None:
    from gensim.models import KeyedVectors

    keyed = KeyedVectors(2)
    keyed.add_vectors([7], np.ones((1, 2), np.float32))
    with pytest.raises(StorageError, match="KeyedVectors: the key 7 is not a string"):
        from_gensim(keyed)


def test_safetensors_reads_vectors_and_words(tmp_path: Path) -> None:
    from safetensors import safe_open

    vectors = make(["olive oil", "👑"], counts=[5, 1])
    export(vectors, tmp_path / "v.safetensors")
    with safe_open(tmp_path / "v.safetensors", "numpy") as file:
        assert file.get_tensor("vectors").tobytes() == vectors.vectors.tobytes()
        assert json.loads(file.metadata()["words"]) == ["olive oil", "👑"]
        assert json.loads(file.metadata()["counts"]) == [5, 1]


def test_safetensors_files_of_the_library_are_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    tensors = {"vectors": values, "other": np.arange(3)}
    save_file(tensors, tmp_path / "v.safetensors", metadata={"words": '["a", "b"]'})
    assert load(tmp_path / "v.safetensors").vectors.tolist() == values.tolist()


def test_numpy_reads_npz_and_npy(tmp_path: Path) -> None:
    vectors = make(["olive oil", "👑"], counts=[5, 1])
    export(vectors, tmp_path / "v.npz")
    export(vectors, tmp_path / "v.npy")

    with np.load(tmp_path / "v.npz", allow_pickle=False) as file:
        assert file["words"].tolist() == ["olive oil", "👑"]
        assert file["vectors"].tobytes() == vectors.vectors.tobytes()
        assert file["counts"].tolist() == [5, 1]
    assert np.load(tmp_path / "v.npy").tobytes() == vectors.vectors.tobytes()
    assert (tmp_path / "v.vocabulary.txt").read_text() == "olive oil\t5\n👑\t1\n"


def test_files_that_numpy_writes_are_read(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez_compressed(tmp_path / "v.npz", vectors=values, words=np.array(["a", "b"]))
    np.save(tmp_path / "w.npy", values.astype(np.float16))
    (tmp_path / "w.vocabulary.txt").write_text("a\r\nb\r\n")
    for name in ("v.npz", "w.npy"):
        read = load(tmp_path / name)
        assert (list(read.vocabulary), read.vectors.tolist()) == (["a", "b"], values.tolist())


@pytest.mark.parametrize("name", ["v.parquet", "v.arrow"])
def test_pyarrow_reads_a_table_of_words_counts_and_vectors(tmp_path: Path, name: str) -> None:
    from pyarrow import feather, parquet

    vectors = make(["olive oil", ""], counts=[5, 1])
    export(vectors, tmp_path / name)
    table = parquet.read_table(tmp_path / name) if name == "v.parquet" else feather.read_table(tmp_path / name)
    assert table.column_names == ["word", "count", "vector"]
    assert table["word"].to_pylist() == ["olive oil", ""]
    assert np.array(table["vector"].to_pylist(), np.float32).tobytes() == vectors.vectors.tobytes()


def test_tables_of_other_types_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import feather, parquet

    table = pa.table(
        {
            "vector": pa.array([[1.0, 2], [3, 4]], pa.list_(pa.float64())),
            "word": pa.array(["a", "b"], pa.large_string()),
            "count": pa.array([1, 2], pa.uint8()),
            "more": [1, 2],
        }
    )
    parquet.write_table(table, tmp_path / "v.parquet", row_group_size=1)
    feather.write_feather(table, str(tmp_path / "v.feather"), compression="zstd", chunksize=1)
    for name in ("v.parquet", "v.feather"):
        read = load(tmp_path / name)
        assert read.vectors.tolist() == [[1, 2], [3, 4]]
        assert read.vocabulary == Vocabulary(["a", "b"], [1, 2])


def test_projector_tables_have_one_line_per_word(tmp_path: Path) -> None:
    vectors = make(["olive oil", "king"], counts=[3, 2])
    export(vectors, tmp_path / "p", format="projector")
    assert (tmp_path / "p" / "metadata.tsv").read_text() == "word\tcount\nolive oil\t3\nking\t2\n"
    assert np.loadtxt(tmp_path / "p" / "vectors.tsv", np.float32).tobytes() == vectors.vectors.tobytes()
    assert 'metadata_path: "metadata.tsv"' in (tmp_path / "p" / "projector_config.pbtxt").read_text()
    export(make(["king"]), tmp_path / "q", format="projector")
    assert (tmp_path / "q" / "metadata.tsv").read_text() == "king\n"


@pytest.mark.parametrize("format", ["model2vec", "sentence-transformers"])
def test_model2vec_gives_texts_the_mean_of_their_words(tmp_path: Path, format: str) -> None:
    from model2vec import StaticModel

    vectors = make(WORDS)
    export(vectors, tmp_path / "m", format=format)
    model = StaticModel.from_pretrained(tmp_path / "m")
    texts = ["The King, the queen", "Don’t! state-of-the-art", "unheard", "naïve 中文", "king-queen"]
    expected = [["king", "queen"], ["don't", "state-of-the-art"], [], ["naïve", "中文"], []]
    assert [[model.tokens[i] for i in ids] for ids in model.tokenize(texts)] == expected
    means = [np.mean([vectors[word] for word in words] or [np.zeros(4, np.float32)], axis=0) for words in expected]
    assert np.allclose(model.encode(texts), means, atol=1e-6)


def test_labels_with_spaces_are_found_in_texts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    vectors = make(["olive oil", "Oil", "c++", "", "new york city", "[UNK]"])
    export(vectors, tmp_path / "m", format="model2vec")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    found = tokenizer.encode("some olive oil and Oil or c++ in new york city").tokens
    assert [token for token in found if token != "[[UNK]]"] == ["olive oil", "Oil", "c++", "new york city"]


def test_a_folder_for_the_hub_has_a_model_card_and_is_read_by_model2vec(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard
    from model2vec import StaticModel

    table = VectorTable(Vocabulary(["king", "queen"], [2, 1]), np.array([[1, 0], [0, 1]], np.float32))
    settings: dict[str, dict[str, Any]] = {"count": {"window": 10, "left": None}, "train": {"dim": 2, "seed": 1}}
    vectors = Vectors(table, settings=settings)
    export(vectors, tmp_path / "royal words", format="huggingface")
    export(vectors, tmp_path / "m", format="model2vec")

    files = {file.name for file in (tmp_path / "royal words").iterdir()}
    assert files == {"README.md", *(file.name for file in (tmp_path / "m").iterdir())}
    ours = StaticModel.from_pretrained(tmp_path / "royal words").encode(["queen and king"])
    assert ours.tobytes() == StaticModel.from_pretrained(tmp_path / "m").encode(["queen and king"]).tobytes()

    text = (tmp_path / "royal words" / "README.md").read_text(encoding="utf-8")
    card = ModelCard(text)
    assert "library_name: model2vec\n" in str(card.data)
    assert "# royal words\n\nStatic embeddings: 2 vectors of 2 dimensions" in card.text
    assert "- count: `window=10`\n- train: `dim=2`, `seed=1`\n" in card.text
    assert "$" not in text


def test_the_model_card_of_another_tools_vectors_knows_no_settings(tmp_path: Path) -> None:
    export(make(WORDS), tmp_path / "m", format="huggingface")
    assert "another tool's" in (tmp_path / "m" / "README.md").read_text(encoding="utf-8")


def test_folders_that_model2vec_writes_are_read(tmp_path: Path) -> None:
    from model2vec import StaticModel

    vectors = make(WORDS)
    export(vectors, tmp_path / "m", format="model2vec")
    StaticModel.from_pretrained(tmp_path / "m").save_pretrained(tmp_path / "again")
    read = load(tmp_path / "again")
    assert read.vocabulary.tokens == vectors.vocabulary.tokens
    assert read.vectors.tobytes() == vectors.vectors.tobytes()


def test_exported_tokenizer_splits_text_as_swivel_does(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from fuzz.tokenizer_reference import split_units
    from swivel.config import CorpusConfig

    text = "Don’t co‑operate: “l'été” 3.14 x_y naïve soft\u00adhyphen हिन्दी می‌خواهم rock-'n'-roll -lead trail- ÀÉ 東京"
    words = sorted({word for unit in split_units(text, CorpusConfig()) for word in unit})
    export(make(words), tmp_path / "m", format="model2vec")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    assert tokenizer.encode(text).tokens == [word for unit in split_units(text, CorpusConfig()) for word in unit]


@pytest.mark.heavy
@pytest.mark.parametrize("format", ["model2vec", "sentence-transformers"])
@pytest.mark.filterwarnings("default")
def test_sentence_transformers_gives_texts_the_mean_of_their_words(tmp_path: Path, format: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    vectors = make(WORDS)
    export(vectors, tmp_path / "m", format=format)
    model = library.SentenceTransformer(str(tmp_path / "m"), device="cpu")

    assert np.allclose(
        model.encode(["The king"])[0] * 2, vectors["king"], atol=1e-6
    )  # the unknown word has a vector of zeros
    assert np.allclose(model.encode(["King queen"])[0], (vectors["king"] + vectors["queen"]) / 2, atol=1e-6)

    model.save(str(tmp_path / "again"))

    assert load(tmp_path / "again").vectors.tobytes() == vectors.vectors.tobytes()


@pytest.fixture(scope="module")
def spelled() -> Vectors:
    """Vectors of 1,500 words that are sums of the vectors of their stem and of their ending, with n-grams."""
    rng = np.random.default_rng(3)
    stems = ["".join(letters) for letters in itertools.product("bdgkt", "aeiou", "lmnr", "pst")]
    words = [stem + ending for stem in stems for ending in ("", "s", "ing", "ness", "able")]
    values = np.repeat(rng.standard_normal((300, 16)), 5, axis=0) + np.tile(rng.standard_normal((5, 16)), (300, 1))
    counts = rng.integers(1, 99, len(words))  # not descending
    return Vectors(VectorTable(Vocabulary(words, counts), values.astype(np.float32))).with_subwords()


def measure_cosines(first: Any, second: Any) -> Any:
    return (first * second).sum(axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gensim leaves a file open
def test_gensim_reads_known_words_and_guesses_from_a_fasttext_model(
    tmp_path: Path, spelled: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gensim.models.fasttext import load_facebook_vectors

    monkeypatch.setattr(fasttext_binary, "BUCKETS", 50_000)
    monkeypatch.setattr(fasttext_binary, "_CHUNK_ROWS", 700)
    export(spelled, tmp_path / "model.bin", format="fasttext-bin")
    read = load_facebook_vectors(str(tmp_path / "model.bin"))

    assert tuple(read.index_to_key) == spelled.vocabulary.tokens
    assert read.get_vecattr("balping", "count") == spelled.vocabulary.counts[spelled.vocabulary.ids["balping"]]
    assert np.allclose(read.vectors, spelled.vectors, atol=1e-4)

    unseen = [stem + ending for stem in ("balp", "torts", "ginp") for ending in ("ed", "ly", "ings", "lessness")]
    assert spelled.subwords is not None
    guesses = spelled.subwords.guess(unseen)
    assert measure_cosines(np.stack([read[word] for word in unseen]), guesses).min() > 0.95


def test_a_fasttext_model_has_words_without_counts_and_without_zeros(
    tmp_path: Path, spelled: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gensim.models.fasttext import load_facebook_vectors

    monkeypatch.setattr(fasttext_binary, "BUCKETS", 1_000)
    values = np.array(spelled.vectors)
    values[7] = 0
    vectors = Vectors(VectorTable(Vocabulary(spelled.vocabulary.tokens), values), subwords=spelled.subwords)
    with pytest.warns(SwivelWarning, match="1 of 1,500 words have no co-occurrences"):
        export(vectors, tmp_path / "model.bin", format="fasttext-bin")

    with (tmp_path / "model.bin").open("rb") as file:
        read = load_facebook_vectors(file.name)
    assert len(read) == 1_499
    assert np.allclose(read.vectors, np.delete(values, 7, axis=0), atol=1e-4)


def test_a_fasttext_model_needs_ngrams_and_is_not_read(tmp_path: Path, spelled: Vectors) -> None:
    with pytest.raises(ConfigError, match="no n-grams to write: train with subwords='ngrams'"):
        export(make(WORDS), tmp_path / "model.bin", format="fasttext-bin")
    labels = Vocabulary([*spelled.vocabulary.tokens[1:], "olive oil"])
    with pytest.raises(VocabularyError, match="fasttext-bin cannot store the label 'olive oil'"):
        export(
            Vectors(VectorTable(labels, spelled.vectors), subwords=spelled.subwords),
            tmp_path / "model.bin",
            format="fasttext-bin",
        )
    assert not list(tmp_path.iterdir())

    (tmp_path / "model.bin").write_bytes(fasttext_binary.MAGIC)
    for format in (None, "fasttext-bin"):
        with pytest.raises(StorageError, match=r"model\.bin: a fastText model; use the \.vec file"):
            load(tmp_path / "model.bin", format=format)
