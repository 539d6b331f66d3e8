"""The compiled tokenizer against the reference, for any number of threads, piece size and source."""

import dataclasses
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.tokenizer_reference import split_units
from swivel.config import CorpusConfig, VocabularyConfig
from swivel.corpus.character_classes import ABBREVIATIONS, build_rules, kind_of
from swivel.corpus.encoded_corpus import EncodedCorpus, encode_corpus
from swivel.corpus.normalization import lower_token, normalize
from swivel.corpus.sources import Texts
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary, choose_tokens
from swivel.runtime.progress import Progress, Task

NASTY = [
    *"\r\n\0\x0b\x1c\x1f\x85\u00a0\u2028\u2029\u3000\t  ",
    *"'’-‐‑–\u00ad\u200d\u200c\ufeff",
    *"aBZzJİIıẞΣςSKΣ\u212aéßŁłⱥȺ\u0301\u0307\u0e31\ufe0f中かक्\U0001f600\U00010400\U00020000",
    *'09½²_.!?…。！？,"”’)]»«“',
    *["\r\n", "\n\n", "\r\r", ". A", ". a", "mr. X", "J. B", "no.) Y", "etc... Z", "e.g. ", "? ", "don't", "x-y"],
]
# Each text uses few of them, so that all combinations occur often.
nasty_texts = st.lists(st.sampled_from(NASTY), min_size=1, max_size=7, unique=True).flatmap(
    lambda few: st.lists(st.sampled_from(few), max_size=60).map("".join)
)
# Cases that random texts rarely contain.
HARD = [
    "a--b a'-b x-’y a\u00ad-b a-\u00ad\u0301b -\u0301b c-\u00ad d co‐op non‑stop",
    "He left.' Then \"No.\" 'Yes!' ”X?” Y",
    "He left.' then. \u00ad A. \u00adB. -C. 'D. \u0301E. 5. 。F",
    "one\n two\r three\r\n\r\nfour\r \nfive\r\0\r\nsix\r\x0b\nseven\u2028\u00ad\neight\r\u00ad\nnine",
    "J. B. mr. X Mr. Y MRS.. Z no.) Q vols. W 7. E İ. R n\u212a. T st-. P etc\u00ad. A",
    "a_b _c_ d__e New_York-City _ \u0301_f g_. H_1 _-_ i_'j",
    "a.b c.! d!. E .. f ?! G . H\t! i…\u3000J",
    "ΣΟΦΟΣ ΑΣ-Α ΑΣ2ΑΣ ΑΣ'Α ΑΣ' ΑΣ\u0301Α ΑΣ\u0301 ΑΣʰ ΑΣaΣ 2Σ Σ aΣ Α\u0301Σ ΑΣΣ ΣΣ σΣ. Σ\u200dΑΣ ΑΣ\u200dΑ Α_Σ_Α",
    "e\u0301 q\u0323\u0307 q\u0307\u0323 \u1112\u1161\u11ab ﬁx ｶﾞ \u0301a \u0958 \u212bΩ \ufb1d a" + "\u0323\u0301" * 20,
]
free_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CONFIGS = [
    CorpusConfig(tokenizer=tokenizer, unit=unit, lowercase=lowercase)
    for tokenizer, unit, lowercase in itertools.product(
        ("words", "whitespace"), ("line", "sentence", "document"), (True, False)
    )
]
CONFIGS += [CorpusConfig(normalization="NFKC"), CorpusConfig(normalization="none"), CorpusConfig(turkish=True)]
CONFIGS += [CorpusConfig(keep_underscores=True), CorpusConfig(keep_underscores=True, unit="sentence")]
many = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def encode(
    texts: Texts, config: CorpusConfig, folder: Path, *, threads: int = 1, piece_bytes: int = 1 << 20
) -> EncodedCorpus:
    # Strings in a list may look like paths; those of an iterator are texts.
    source = iter(texts) if isinstance(texts, list) else texts
    return encode_corpus(source, config, scratch=folder, threads=threads, piece_bytes=piece_bytes)


def read_units(
    encoded: EncodedCorpus, folder: Path, vocabulary: Vocabulary | None = None, keep_gaps: bool = False
) -> list[list[str | None]]:
    """Return units as lists of tokens (None for a gap); assert that no break is repeated or at either end."""
    vocabulary = vocabulary or Vocabulary(sorted(encoded.counts()))
    ids = encoded.write_ids(vocabulary, keep_gaps=keep_gaps, path=folder / "out.npy", threads=2)

    assert ids.dtype == np.uint32

    if not len(ids):
        return []
    breaks = np.flatnonzero(ids == BREAK)

    assert not {0, len(ids) - 1} & set(breaks.tolist())
    assert (np.diff(breaks) > 1).all()

    names = {**dict(enumerate(vocabulary.tokens)), int(GAP): None}
    return [[names[int(i)] for i in unit if i != BREAK] for unit in np.split(ids, breaks)]


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.tokenizer}-{c.unit}-{'lower' if c.lowercase else 'case'}"
)
@many
@given(text=nasty_texts | free_texts, piece_bytes=st.integers(1, 64), threads=st.integers(1, 3))
def test_a_file_is_encoded_like_the_reference(
    folder: Path, config: CorpusConfig, text: str, piece_bytes: int, threads: int
) -> None:
    file = folder / "text.txt"
    text = text.lstrip("\ufeff")  # A byte order mark at the start of a file is not part of the text.
    file.write_bytes(text.encode())
    encoded = encode(file, config, folder, threads=threads, piece_bytes=piece_bytes)
    expected = split_units(text, config)

    assert read_units(encoded, folder) == expected
    assert encoded.counts() == Counter(token for unit in expected for token in unit)
    assert encoded.token_count == sum(map(len, expected))
    assert encoded.unit_count == len(expected)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_hard_cases_are_encoded_like_the_reference(folder: Path, config: CorpusConfig) -> None:
    for text in [*HARD, "\n\n".join(HARD), " ".join(HARD)]:
        (folder / "hard.txt").write_bytes(text.encode())
        for piece_bytes in (1, 7, 1 << 20):
            encoded = encode(folder / "hard.txt", config, folder, threads=2, piece_bytes=piece_bytes)
            assert read_units(encoded, folder) == split_units(text, config)


@many
@given(
    texts=st.lists(nasty_texts, max_size=8),
    config=st.sampled_from(CONFIGS),
    piece_bytes=st.integers(1, 64),
    threads=st.integers(1, 3),
)
def test_each_string_of_an_iterable_is_a_separate_document(
    folder: Path, texts: list[str], config: CorpusConfig, piece_bytes: int, threads: int
) -> None:
    encoded = encode(iter(texts), config, folder, threads=threads, piece_bytes=piece_bytes)
    expected = [unit for text in texts for unit in split_units(text, config)]
    assert read_units(encoded, folder) == expected
    assert encoded.unit_count == len(expected)


@many
@given(
    units=st.lists(st.lists(nasty_texts | st.just("\ufdd0"), max_size=5), max_size=5),
    config=st.sampled_from(CONFIGS),
    piece_bytes=st.integers(1, 64),
)
def test_lists_of_tokens_are_changed_in_case_only(
    folder: Path, units: list[list[str]], config: CorpusConfig, piece_bytes: int
) -> None:
    encoded = encode(units, config, folder, threads=2, piece_bytes=piece_bytes)
    expected = [[lower_token(normalize(token, config.normalization), config) for token in unit] for unit in units]
    expected = [[token for token in unit if token] for unit in expected]
    assert read_units(encoded, folder) == [unit for unit in expected if unit]


@many
@given(texts=st.lists(nasty_texts, min_size=1, max_size=4), config=st.sampled_from(CONFIGS), threads=st.integers(1, 3))
def test_units_never_cross_files_and_files_keep_their_order(
    folder: Path, texts: list[str], config: CorpusConfig, threads: int
) -> None:
    files = [folder / f"part-{number}.txt" for number in range(len(texts))]
    texts = [text.lstrip("\ufeff") for text in texts]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode())
    encoded = encode(files, config, folder, threads=threads, piece_bytes=32)
    assert read_units(encoded, folder) == [unit for text in texts for unit in split_units(text, config)]


@many
@given(data=st.lists(st.sampled_from([b"a ", b"B", b"\n", b"\xff", b"\xe2\x82", b"\x80", b"\xf0\x9f\x98", b"\xc3\xa9",
                                      b"\xed\xa0\x80", b"\xc0\x80", b". ", b"\xf4\x90\x80\x80",
                                      b"\xe0\x83\xa9", b"\xf0\x80\x83\xa9"]), max_size=12),
       config=st.sampled_from(CONFIGS), piece_bytes=st.integers(1, 64))  # fmt: skip
def test_invalid_utf8_separates_tokens_with_errors_replace(
    folder: Path, data: list[bytes], config: CorpusConfig, piece_bytes: int
) -> None:
    file = folder / "bad.txt"
    joined = b"".join(data)
    file.write_bytes(joined)
    config = dataclasses.replace(config, errors="replace")
    encoded = encode(file, config, folder, threads=2, piece_bytes=piece_bytes)
    assert read_units(encoded, folder) == split_units(joined.decode("utf-8", "swivel.separator"), config)


@many
@given(text=nasty_texts, vocabulary=st.sets(st.sampled_from(["a", "b", "absent", "don't", "j", "z", "中"]), min_size=1))
def test_tokens_outside_the_vocabulary_are_left_out_or_become_gaps(
    folder: Path, text: str, vocabulary: set[str]
) -> None:
    config = CorpusConfig()
    encoded = encode([text, text], config, folder, threads=2, piece_bytes=16)
    expected = split_units(text, config) * 2
    chosen = Vocabulary(sorted(vocabulary))
    kept = [[token for token in unit if token in vocabulary] for unit in expected]

    assert read_units(encoded, folder, chosen) == [unit for unit in kept if unit]

    gaps = [[token if token in vocabulary else None for token in unit] for unit in expected]
    assert read_units(encoded, folder, chosen, keep_gaps=True) == gaps


def test_a_token_that_is_too_long_is_split(folder: Path) -> None:
    text = "é" * 50_000 + "x" * 100_000 + "-İ" * 40_000 + " end"
    (folder / "long.txt").write_text(text, encoding="utf-8")
    for config in (CorpusConfig(), CorpusConfig(tokenizer="whitespace", lowercase=False)):
        for piece_bytes in (1000, 1 << 20):
            encoded = encode(folder / "long.txt", config, folder, threads=2, piece_bytes=piece_bytes)
            assert read_units(encoded, folder) == split_units(text, config)
            assert max(len(token.encode()) for token in encoded.counts()) == 65_536


def test_many_types_and_long_lines_are_encoded_equally_for_all_threads_and_pieces(folder: Path) -> None:
    rng = np.random.default_rng(3)
    text = " ".join(f"w{number:x}" for number in rng.zipf(1.3, 200_000) % 100_000)
    (folder / "line.txt").write_text(text)
    expected = Counter(text.split())
    results = []
    for threads, piece_bytes in [(1, 1 << 22), (2, 50_001), (3, 77_777)]:
        encoded = encode(folder / "line.txt", CorpusConfig(), folder, threads=threads, piece_bytes=piece_bytes)
        assert encoded.counts() == expected
        assert encoded.unit_count == 1
        vocabulary = choose_tokens(encoded.counts(2), VocabularyConfig(min_count=2, max_size=500))
        ids = encoded.write_ids(vocabulary, keep_gaps=True, path=folder / f"{threads}.npy", threads=threads)
        results.append(ids.tobytes())

    assert len(set(results)) == 1


def test_types_that_do_not_fit_in_memory_are_counted_and_encoded_equally(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swivel.corpus.encoded_corpus._MIN_TABLE_BYTES", 1)
    rng = np.random.default_rng(4)
    text = "\n".join(f"w{number:x} v{number % 977}" for number in rng.zipf(1.2, 60_000) % 50_000)
    (folder / "text.txt").write_text(text)
    expected = Counter(text.split())
    results: list[tuple[tuple[str, ...], bytes]] = []

    for threads, memory_bytes in [(2, 1 << 30), (1, 1), (2, 1 << 26)]:
        encoded = encode_corpus(
            folder / "text.txt",
            CorpusConfig(),
            scratch=folder,
            threads=threads,
            memory_bytes=memory_bytes,
            piece_bytes=10_001,
        )
        assert encoded.token_count == expected.total()
        assert encoded.types.of_tokens(["w1", "absent"]) == {"w1": expected["w1"]}
        most = encoded.types.most_frequent(2, limit=100)
        assert most.items() <= expected.items()
        assert set(most.values()) >= {count for _, count in expected.most_common(100)}

        vocabulary = choose_tokens(most, VocabularyConfig(min_count=2, max_size=100))
        ids = encoded.write_ids(vocabulary, keep_gaps=True, path=folder / f"{len(results)}.npy", threads=threads)
        results.append((vocabulary.tokens, ids.tobytes()))

    assert len(set(results)) == 1
    assert len(list(folder.glob("types-0-*.npy"))) > 10


def test_counts_are_limited_by_min_count(folder: Path) -> None:
    encoded = encode(["a b a c", "c a"], CorpusConfig(), folder)
    assert encoded.counts() == {"a": 3, "b": 1, "c": 2}
    assert encoded.counts(min_count=2) == {"a": 3, "c": 2}


def test_the_tables_classify_every_character_like_the_reference() -> None:
    config = CorpusConfig(unit="sentence")
    assert build_rules(config).kinds.tolist() == [kind_of(chr(point), config) for point in range(0x110000)]


def test_abbreviations_fit_the_compiled_tokenizer() -> None:
    assert all(word.isascii() and word.islower() and 1 < len(word) <= 7 and "k" not in word for word in ABBREVIATIONS)


class Recorder(Progress, Task):
    """Progress that adds the reported amounts."""

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.ended = False
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.done += amount

    def end(self, task: Task) -> None:
        self.ended = True

    def message(self, text: str) -> None:
        raise AssertionError(text)


def test_progress_adds_up_to_the_bytes_of_the_files(folder: Path) -> None:
    (folder / "p.txt").write_bytes(b"some words\n" * 100)
    recorder = Recorder()
    encode_corpus([folder / "p.txt"] * 2, CorpusConfig(), scratch=folder, threads=2, progress=recorder, piece_bytes=64)
    assert (recorder.total, recorder.done, recorder.unit, recorder.ended) == (2200, 2200, "bytes", True)
    encode_corpus(["abc"], CorpusConfig(), scratch=folder, threads=1, progress=recorder)
    assert recorder.total is None
