"""Scripts without spaces, tokenizers of the user, and lists of tokens."""

import doctest
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from message_recorder import MessageRecorder
from swivel.cli.main import cli
from swivel.config import CorpusConfig
from swivel.corpus import segmentation
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.segmentation import find_language, insert_spaces, resolve_tokenizer
from swivel.errors import ConfigError, CorpusError, MissingExtra

UNSPACED = {
    "Japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "Chinese": "北京是中华人民共和国的首都，也是全国的政治中心和文化中心。",
    "Thai": "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน",
    "Lao": "ພາສາລາວເປັນພາສາທາງການຂອງສາທາລະນະລັດ",
    "Khmer": "ភាសាខ្មែរជាភាសាកំណើតរបស់ជនជាតិខ្មែរ",
    "Burmese": "မြန်မာဘာသာစကားသည်မြန်မာနိုင်ငံ၏ရုံးသုံးဘာသာစကားဖြစ်သည်",
}
SPACED = [
    "The quick brown fox",
    "Быстрая лиса",
    "हिन्दी एक भाषा है",
    "اللغة العربية لغة",
    "한국어는 언어이다",
    "北京 是 中国 的 首都 ， 也 是 中心",
    "ภาษา ไทย เป็น ภาษา ที่ มี ระดับ เสียง",
    "The word 東京 means Tokyo in Japanese, and that is all there is to say",
    "",
]
needs_icu = pytest.mark.skipif(importlib.util.find_spec("icu4py") is None, reason="needs the extra icu")
CLAUSES = ["猫と犬が好きです", "犬と猫がいる"] * 10


def split_characters(text: str) -> list[str]:
    return [char for char in text if char.isalpha()]


def split_lines_too(text: str) -> list[str]:
    assert "\n" not in text and "\r" not in text
    return text.replace("-", " - ").split(" ")


def fail(text: str) -> list[str]:
    raise ValueError("no dictionary\nfor this")


def units_of(texts: Any, config: CorpusConfig, folder: Path, **settings: Any) -> list[list[str]]:
    from swivel.corpus.vocabulary import BREAK, Vocabulary

    encoded = encode_corpus(texts, config, scratch=folder, **{"threads": 1, **settings})
    vocabulary = Vocabulary(sorted(encoded.counts()))
    ids = encoded.write_ids(vocabulary, keep_gaps=False, path=folder / "out.npy", threads=1)
    pieces = np.split(ids, np.flatnonzero(ids == BREAK)) if len(ids) else []
    return [[vocabulary[int(number)] for number in piece if number != BREAK] for piece in pieces]


@pytest.mark.parametrize(("language", "text"), UNSPACED.items())
def test_unspaced_text_is_recognized(language: str, text: str) -> None:
    assert find_language(text) == language


@pytest.mark.parametrize("text", SPACED)
def test_text_with_spaces_is_not(text: str) -> None:
    assert find_language(text) is None


@pytest.mark.parametrize("kind", ["file", "folder", "list", "iterator"])
def test_unspaced_text_is_said_at_the_start(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "has_icu", lambda: False)
    (tmp_path / "in").mkdir()
    lines = [" ".join(CLAUSES[:2])] * 10
    (tmp_path / "in" / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    texts: dict[str, Any] = {"file": tmp_path / "in" / "a.txt", "folder": tmp_path / "in"}
    texts |= {"list": lines, "iterator": iter(lines)}
    recorder = MessageRecorder()
    matrix = swivel.count(texts[kind], min_count=1, progress=recorder)
    assert set(matrix.rows) == set(CLAUSES)
    warnings = [text for text in recorder.lines if "Japanese" in text]
    assert len(warnings) == 1 and "swivel-embeddings[icu]" in warnings[0]
    assert matrix.rows.counts.sum() == 20  # no text was lost


def test_text_with_spaces_is_counted_without_a_word(tmp_path: Path) -> None:
    recorder = MessageRecorder()
    swivel.count(["the cat sat", "the dog sat"] * 5, progress=recorder)
    assert not any("script" in text or "ICU" in text or "spaces" in text for text in recorder.lines)


def test_auto_is_recorded_as_what_it_means(tmp_path: Path) -> None:
    swivel.count(["the cat sat", "the dog sat"] * 5, tmp_path / "matrix")
    manifest = json.loads((tmp_path / "matrix" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["config"]["corpus"]["tokenizer"] == "words"


def test_icu_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "has_icu", lambda: False)
    with pytest.raises(MissingExtra, match=r"swivel-embeddings\[icu\]"):
        swivel.count(["猫がいる"], tokenizer="icu")


@needs_icu
@pytest.mark.parametrize(("language", "text"), UNSPACED.items())
def test_icu_separates_words_and_keeps_the_text(language: str, text: str) -> None:
    spaced = insert_spaces(f"don't {text} state-of-the-art")
    assert spaced.replace("\u200b", "") == f"don't {text} state-of-the-art"
    assert spaced.startswith("don't ") and spaced.endswith(" state-of-the-art")
    assert max(map(len, spaced.split("\u200b"))) < len(text)


@needs_icu
def test_icu_is_chosen_by_itself(tmp_path: Path) -> None:
    recorder = MessageRecorder()
    matrix = swivel.count(CLAUSES, tmp_path / "matrix", min_count=1, progress=recorder)
    assert {"猫", "犬"} <= set(matrix.rows)
    assert [text for text in recorder.lines if "ICU" in text]
    vectors = swivel.train(matrix, dim=4, epochs=1)
    clause, words = vectors.encode(["猫と犬", ["猫", "と", "犬"]][:1]), vectors.encode([["猫", "と", "犬"]])
    assert np.array_equal(clause, words) and clause.any()


@needs_icu
def test_icu_gives_the_same_words_for_any_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "PIECE_BYTES", 200)
    file = tmp_path / "a.txt"
    file.write_text("\n".join([*UNSPACED.values(), "plain words"] * 5), encoding="utf-8")
    config = CorpusConfig(tokenizer="icu", unit="sentence")
    one = units_of(file, config, tmp_path)
    assert units_of(file, config, tmp_path, threads=2) == one
    assert ["plain", "words"] in one


@needs_icu
def test_the_page_of_languages_is_true_with_icu() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "languages.md"
    assert doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS).failed == 0


TEXT = "ab-c d\n\n\ne f. G h! i\r\nj\u3002k\n"


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000])
@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("line", [["ab", "-", "c", "d"], ["e", "f.", "g", "h!", "i"], ["j。k"]]),
        ("sentence", [["ab", "-", "c", "d"], ["e", "f."], ["g", "h!"], ["i"], ["j。"], ["k"]]),
        ("document", [["ab", "-", "c", "d"], ["e", "f.", "g", "h!", "i", "j。k"]]),
    ],
)
def test_a_function_splits_every_unit(
    unit: str, expected: list[list[str]], piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pieces are longer than a line, because a function needs whole words.
    monkeypatch.setattr(segmentation, "PIECE_BYTES", 16 * piece_bytes)
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8", newline="")
    config = CorpusConfig(tokenizer=split_lines_too, unit=unit)
    assert units_of(tmp_path / "a.txt", config, tmp_path) == expected
    assert units_of(iter([TEXT, "x y"]), config, tmp_path) == [*expected, ["x", "y"]]
    assert units_of(iter([["a b", "c"]]), config, tmp_path) == [["a b", "c"]]  # tokens already


def test_a_function_of_a_module_runs_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentation, "PIECE_BYTES", 64)
    (tmp_path / "own_words.py").write_text(
        "import os\ndef split(text):\n    return [*text.split('-'), f'process{os.getpid()}']\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("ab-cd-ef\n" * 50, encoding="utf-8")
    config = CorpusConfig(tokenizer="own_words:split")
    encoded = encode_corpus(tmp_path / "a.txt", config, scratch=tmp_path, threads=2)
    counts = encoded.counts()
    assert [counts.pop(token) for token in ("ab", "cd", "ef")] == [50] * 3
    assert 1 <= len(counts) <= 2 and f"process{__import__('os').getpid()}" not in counts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "no_such_module"),
        ("json:no_such", "no_such"),
        ("json:__doc__", "not a function"),
        ("jieba", "tokenizer must be auto, words, whitespace, icu, module:function"),
    ],
)
def test_a_misspelled_function_is_reported_before_text_is_read(name: str, message: str) -> None:
    read: list[str] = []
    texts = (read.append(text) or text for text in ["a text"])  # type: ignore[func-returns-value]
    with pytest.raises(ConfigError, match=message):
        swivel.count(texts, tokenizer=name)
    assert not read


def test_errors_of_a_function_are_one_line() -> None:
    with pytest.raises(CorpusError, match=r"ValueError: no dictionary.*'a text'") as caught:
        swivel.count(["a text"], tokenizer=fail)
    assert "\n" not in str(caught.value)
    with pytest.raises(CorpusError, match="words of a text as strings"):
        swivel.count(["a text"], tokenizer=len)


@pytest.mark.parametrize(
    ("result", "wrong"), [("a text", "str"), (b"a text", "bytes"), ([b"a", b"text"], "bytes"), ([1, 2], "int")]
)
def test_a_tokenizer_must_return_a_list_of_strings(result: Any, wrong: str) -> None:
    # A string would be split into its characters in silence.
    with pytest.raises(CorpusError, match=f"as a list of strings, not {wrong}; the text: 'a text'"):
        swivel.count(["a text"], tokenizer=lambda _: result)


def test_a_tokenizer_in_count_extend_and_encode(tmp_path: Path) -> None:
    matrix = swivel.count(CLAUSES, tmp_path / "matrix", tokenizer=split_characters)
    assert {"猫", "犬"} <= set(matrix.rows)
    vectors = swivel.train(matrix, tmp_path / "vectors", dim=4, epochs=1)
    assert vectors.settings["corpus"]["tokenizer"].endswith("test_segmentation:split_characters")

    # What a manifest names is not imported: the user passes it, or tokens.
    with pytest.raises(ConfigError, match=r"split by '.*split_characters': pass lists of tokens, or tokenizer"):
        vectors.encode(["猫と犬"])
    tokens = vectors.encode([["猫", "と", "犬"]])
    assert np.array_equal(vectors.encode(["猫と犬"], tokenizer=split_characters), tokens) and tokens.any()

    new = ["鳥と猫が好き", "鳥と犬が好き"] * 5
    with pytest.raises(ConfigError, match="split_characters"):
        swivel.extend(vectors, new)
    by_function = swivel.extend(vectors, new, tokenizer=split_characters)
    by_lists = swivel.extend(vectors, [split_characters(text) for text in new])
    assert "鳥" in by_function and np.array_equal(by_function["鳥"], by_lists["鳥"])


def test_encode_takes_lists_of_tokens() -> None:
    vectors = swivel.train(swivel.count(["the cat sat", "the dog sat"] * 5), dim=4, epochs=1)
    expected = vectors.encode(["the cat", "", "dog"])
    assert np.array_equal(vectors.encode([["The", "cat"], [], ("dog",)]), expected)
    assert np.array_equal(vectors.encode([None, ["dog"]])[1], expected[2])
    with pytest.raises(CorpusError, match="item 2: expected a list of tokens"):
        vectors.encode([["the"], "cat"])
    with pytest.raises(CorpusError, match="item 1: all tokens must be strings"):
        vectors.encode([[1]])  # type: ignore[list-item]


def test_encode_does_not_guess_clauses() -> None:
    vectors = swivel.train(swivel.count([list(text) for text in CLAUSES]), dim=4, epochs=1)
    with pytest.raises(ConfigError, match="the texts are Japanese"):
        vectors.encode(["吾輩は猫である名前はまだ無い"])
    assert vectors.encode([["猫"]]).any()


def test_extend_does_not_take_clauses_for_words() -> None:
    vectors = swivel.train(swivel.count([list(text) for text in CLAUSES]), dim=4, epochs=1)
    new = ["吾輩は猫である名前はまだ無い"] * 5
    with pytest.raises(ConfigError, match=r"the texts are Japanese.*lists of tokens"):
        swivel.extend(vectors, new)
    with pytest.raises(ConfigError, match="the texts are Japanese"):
        swivel.extend(vectors, iter(new))
    assert "輩" in swivel.extend(vectors, [list(text) for text in new])


def test_the_command_line_takes_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("command_words.py").write_text("def split(text):\n    return list(text)\n", encoding="utf-8")
    Path("a.txt").write_text("\n".join(CLAUSES), encoding="utf-8")
    result = CliRunner().invoke(cli, ["count", "a.txt", "-o", "m", "--tokenizer", "command_words:split"])
    assert result.exit_code == 0, result.output
    assert "猫" in swivel.open_matrix("m").rows


def test_resolving_keeps_every_text() -> None:
    for texts in (iter(CLAUSES), (text for text in CLAUSES)):
        resolved, config = resolve_tokenizer(texts, CorpusConfig(tokenizer="auto"))
        assert list(resolved) == CLAUSES  # type: ignore[arg-type]
        assert config.tokenizer in ("words", "icu")
