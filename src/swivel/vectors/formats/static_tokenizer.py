"""The `tokenizer.json` of the Hugging Face tokenizers library, for a vocabulary of whole words.

If Swivel's own tokenizer would keep every label as one word, the exported tokenizer splits text as Swivel does;
otherwise it splits at white space. Labels with white space inside are matched before the text is split. Text is
lower-cased if all labels are lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swivel.config import CorpusConfig
from swivel.errors import StorageError

UNKNOWN = "[UNK]"
_QUICK_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_JOINERS = r"[\x{200c}\x{200d}'\-]"
_WORD = rf"[\p{{L}}\p{{N}}][\p{{L}}\p{{N}}\p{{M}}]*(?:{_JOINERS}[\p{{L}}\p{{N}}\p{{M}}]+)*"
_SPELLINGS = {"\u2019": "'", "\u2010": "-", "\u2011": "-", "\u00ad": ""}


def describe_tokenizer(labels: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a tokenizer for these labels; the token for unknown words comes last.

    >>> made = describe_tokenizer(["king", "queen"])
    >>> made["model"]["vocab"], made["pre_tokenizer"]["type"]
    ({'king': 0, 'queen': 1, '[UNK]': 2}, 'Split')
    """
    vocabulary = {label: number for number, label in enumerate(labels)}

    # Add brackets until the unknown token differs from every label.
    unknown = UNKNOWN
    while unknown in vocabulary:
        unknown = f"[{unknown}]"

    are_words = all(map(_is_word, labels))

    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(vocabulary[label], label) for label in labels if len(label.split()) > 1],
        "normalizer": _normalizer(are_words, is_lower=all(label == label.lower() for label in labels)),
        "pre_tokenizer": _splitter() if are_words else {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {**vocabulary, unknown: len(vocabulary)}, "unk_token": unknown},
    }


def _is_word(label: str) -> bool:
    """Return whether Swivel's tokenizer keeps a label as one word; a regular expression decides the common case."""
    if _QUICK_WORD.fullmatch(label):
        return True
    from swivel.corpus.tokenizer_reference import split_units

    return split_units(label, CorpusConfig(lowercase=False)) == [[label]]


def _added(number: int, label: str) -> dict[str, Any]:
    flags = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return {"id": number, "content": label, **flags}


def _normalizer(are_words: bool, *, is_lower: bool) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if are_words:
        spellings = _SPELLINGS.items()
        steps += [{"type": "Replace", "pattern": {"String": char}, "content": new} for char, new in spellings]
    if is_lower:
        steps.append({"type": "Lowercase"})

    return {"type": "Sequence", "normalizers": steps} if steps else None


def _splitter() -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": _WORD}, "behavior": "Removed", "invert": True}


def read_tokens(path: Path, tokenizer: Mapping[str, Any]) -> tuple[list[str], int | None]:
    """Return the tokens of a tokenizer in the order of their ids, and the id of the unknown token or None."""
    try:
        model = tokenizer["model"]
        ids = dict(_model_tokens(model["vocab"]))
        ids.update((token["content"], token["id"]) for token in tokenizer.get("added_tokens") or ())

        # WordLevel and WordPiece models name the unknown token; Unigram models have its id.
        if model.get("unk_token"):
            unknown = ids.get(model["unk_token"])
        else:
            unknown = model.get("unk_id")

        words: list[str | None] = [None] * len(ids)
        for word, number in ids.items():
            if type(number) is not int or not 0 <= number < len(ids) or words[number] is not None:
                raise ValueError(f"{word!r} has the id {number!r}, which is used twice or not below {len(ids):,}")
            word.encode()  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair
            words[number] = word

        if unknown is not None and not (type(unknown) is int and 0 <= unknown < len(ids)):
            raise ValueError(f"the id of the unknown token is {unknown!r}, expected an integer below {len(ids):,}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{path}: not a tokenizer with a vocabulary ({error})") from error

    return [word for word in words if word is not None], unknown


def _model_tokens(vocabulary: Any) -> Iterable[tuple[str, int]]:
    """Yield (token, id) pairs from a mapping of ids or, for Unigram models, a list of (token, score) pairs."""
    if isinstance(vocabulary, dict):
        return vocabulary.items()
    return ((token, number) for number, (token, _) in enumerate(vocabulary))
