"""Normal forms of Unicode and lower case, in text, vocabularies and queries."""

from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swivel
from swivel.config import CorpusConfig, recorded_config
from swivel.corpus import normalization
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.vocabulary import Vocabulary
from swivel.evaluation.datasets import SimilaritySet
from swivel.evaluation.scores import score_similarity
from swivel.vectors import Vectors, VectorTable

CAFE, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def tokens_of(text: str, folder: Path, **settings: object) -> dict[str, int]:
    config = CorpusConfig(**settings)  # type: ignore[arg-type]
    return encode_corpus(iter([text]), config, scratch=folder, threads=1).counts()


def test_one_word_in_two_encodings_is_one_word(tmp_path: Path) -> None:
    assert tokens_of(f"{CAFE} {DECOMPOSED}", tmp_path) == {CAFE: 2}
    assert tokens_of(f"{CAFE} {DECOMPOSED}", tmp_path, tokenizer="whitespace") == {CAFE: 2}
    assert tokens_of(f"{CAFE} {DECOMPOSED}", tmp_path, normalization="none") == {CAFE: 1, DECOMPOSED: 1}


def test_nfkc_replaces_compatibility_characters(tmp_path: Path) -> None:
    assert tokens_of("ﬁnal ＡＢＣ ｶﾞ", tmp_path) == {"ﬁnal": 1, "ａｂｃ": 1, "ｶﾞ": 1}
    assert tokens_of("ﬁnal ＡＢＣ ｶﾞ", tmp_path, normalization="NFKC") == {"final": 1, "abc": 1, "ガ": 1}


def test_lower_case_is_that_of_python(tmp_path: Path) -> None:
    for word in ["ΣΟΦΟΣ", "ΌΣ", "ΑΣΑ", "Σ", "ΟΔΥΣΣΕΥΣ", "İSTANBUL", "STRASSE", "ЁЖ", "Σ'Σ", "ΑΣ-ΑΣ", "ΑΣʰ"]:
        assert tokens_of(word, tmp_path) == {word.lower(): 1}, word
    assert tokens_of("ΣΟΦΟΣ σοφος", tmp_path) == {"σοφος": 2}


def test_turkish_keeps_the_dotless_i(tmp_path: Path) -> None:
    assert tokens_of("ILIK İYİ iyi ılık", tmp_path, turkish=True) == {"ılık": 2, "iyi": 2}


def test_every_code_point_is_normalized_as_python_does() -> None:
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    for form in ("NFC", "NFKC"):
        for first in ("", "e", "\u1112", "\u1112\u1161", "क"):
            # A character after a letter, and after itself: only the positions that are found may change.
            data = [(first + char).encode() for char in points if normalize(form, first + char) != first + char]
            unstable = normalization.find_unstable_points(form)
            assert all(any(unstable[ord(char)] for char in text.decode()) for text in data)


def test_bytes_that_are_not_utf8_are_kept() -> None:
    data = b"\xff" + DECOMPOSED.encode() + b"\xfe\xed\xa0\x80\xc3"
    assert normalization.normalize_bytes(data, "NFC") == b"\xff" + CAFE.encode() + b"\xfe\xed\xa0\x80\xc3"


def test_a_letter_is_not_cut_from_its_marks(tmp_path: Path) -> None:
    text = "e\u0301" * 5_000
    file = tmp_path / "a.txt"
    file.write_text(text, encoding="utf-8")
    for piece_bytes in (1, 2, 3, 4, 100):
        encoded = encode_corpus(file, CorpusConfig(), scratch=tmp_path, threads=2, piece_bytes=piece_bytes)
        assert encoded.counts() == {"\u00e9" * 5_000: 1}


def test_more_marks_than_a_piece_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(("a" + "\u0323" * 100_000).encode() + b"\x80" * 5_000)
    config = CorpusConfig(errors="replace")
    encoded = encode_corpus(file, config, scratch=tmp_path, threads=2, piece_bytes=64)
    assert (
        sum(len(token) * count for token, count in encoded.counts().items()) == 100_000
    )  # the letter and its first mark are one character


def test_a_listed_word_is_found_in_any_form() -> None:
    matrix = swivel.count([f"{CAFE} noir", "noir deux"], vocabulary=[DECOMPOSED, CAFE, "noir"])
    assert sorted(matrix.rows) == sorted([CAFE, "noir"])


def test_queries_are_normalized() -> None:
    vocabulary = Vocabulary([CAFE, "abc"])
    assert [vocabulary.find(word) for word in (DECOMPOSED, "ＡＢＣ".lower(), "x")] == [0, 1, None]
    assert vocabulary.id(DECOMPOSED) == 0

    vectors = Vectors(VectorTable(Vocabulary([CAFE, "tea"]), np.eye(2, dtype=np.float32)))
    assert DECOMPOSED in vectors and vectors.get(DECOMPOSED) is not None
    assert vectors[DECOMPOSED].tolist() == [1, 0]
    result = score_similarity(vectors, SimilaritySet("s", ((DECOMPOSED, "tea"), ("tea", CAFE)), (1.0, 2.0)))
    assert result.known == 2


def test_texts_to_encode_are_normalized() -> None:
    matrix = swivel.count([f"{CAFE} noir", f"{DECOMPOSED} deux"] * 5)
    vectors = swivel.train(matrix, dim=4, epochs=1)
    one, other = vectors.encode([CAFE, DECOMPOSED], components=0)
    assert np.array_equal(one, other) and one.any()


def test_an_old_manifest_keeps_its_rule() -> None:
    assert recorded_config(CorpusConfig, {"tokenizer": "words"}).normalization == "none"
    assert recorded_config(CorpusConfig, {"normalization": "NFKC"}).normalization == "NFKC"


@pytest.mark.parametrize("file_name", ["phrases.txt"])
def test_listed_phrases_are_read_as_the_text(tmp_path: Path, file_name: str) -> None:
    (tmp_path / file_name).write_text(f"ΣΟΦΟΣ {DECOMPOSED}\n", encoding="utf-8")
    matrix = swivel.count([f"ο σοφος {CAFE} ηταν"] * 5, phrases=str(tmp_path / file_name))
    assert f"σοφος_{CAFE}" in matrix.rows


LETTERS = "aeix \u00e9\u0430\u03c3\u0915\uac00\u1112\u4e2d\ufb01\u212b"
MARKS = "\u0301\u0300\u0327\u0308\u093c\u1161\u11a8"


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
@given(text=st.text(LETTERS + MARKS, max_size=40), distance=st.sampled_from([0, 7, 8, 300]))
def test_only_what_may_change_is_converted_and_the_result_is_that_of_python(
    form: str, text: str, distance: int
) -> None:
    # Behind some ASCII text there are fewer marks in a piece, which are converted alone.
    text = text[:20] + "x" * distance + text[20:] + "\u0301"
    data = text.encode() + b"\xff\xcc" + text.encode()
    expected = normalize(form, data.decode("utf-8", "surrogateescape"))  # type: ignore[arg-type]
    assert normalization.normalize_bytes(data, form) == expected.encode("utf-8", "surrogateescape")
