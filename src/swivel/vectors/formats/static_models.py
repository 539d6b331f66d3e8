"""Folders of static embedding models: model2vec, and sentence-transformers with a StaticEmbedding module.

Both libraries read `model.safetensors` (one matrix, one row per token) and `tokenizer.json`, and represent a text by
the mean of its token vectors. The last row is zero and stands for unknown words. The rows are word vectors times their
weights, without the common component, so that this mean is the vector of `Vectors.encode` with guess=False, for texts
without phrases.

`tokenizer.json` is a file of the library tokenizers. It splits a text into words as `find_tokenizer` says,
but does not join phrases. Labels with white space inside are matched before the text is split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from swivel._version import __version__
from swivel.errors import StorageError
from swivel.runtime.resources import check_memory
from swivel.storage.files import build_folder, write_file
from swivel.vectors import Vectors, text_encoder
from swivel.vectors.formats.array_files import read_tensors, write_matrix
from swivel.vectors.formats.validate import make_vectors, reading

_MODEL = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_NESTED = "0_StaticEmbedding"
_MODULE = {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}
_UNKNOWN = "[UNK]"
_JOINERS = r"\x{200c}\x{200d}'\-"
_WORD = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*(?:[JOINERS][\p{L}\p{N}\p{M}]+)*"
_SPELLINGS = {"\u2019": "'", "\u2010": "-", "\u2011": "-", "\u00ad": ""}
_TOKEN_FLAGS = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}


def write_model2vec(vectors: Vectors, path: Path, *, with_card: bool = False) -> None:
    """Write a folder for `model2vec.StaticModel.from_pretrained`; `SentenceTransformer` also reads it.

    With a model card, `README.md`, the folder can be uploaded to the Hugging Face Hub.
    """
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": vectors.dim,
        "seq_length": 1_000_000,
        "normalize": False,
        "embedding_dtype": "float32",
    }

    with build_folder(path) as folder:
        _write_model(vectors, folder, "embeddings")
        _write_json(folder / "config.json", config)
        _write_json(folder / "modules.json", [_MODULE])
        if with_card:
            write_file(folder / "README.md", _describe_model(vectors, path.resolve().name).encode())


def write_sentence_transformers(vectors: Vectors, path: Path) -> None:
    """Write a folder for `sentence_transformers.SentenceTransformer`."""
    config = {
        "__version__": {"swivel": __version__},
        "model_type": "SentenceTransformer",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }

    with build_folder(path) as folder:
        _write_model(vectors, folder / _NESTED, "embedding.weight")
        _write_json(folder / "config_sentence_transformers.json", config)
        _write_json(folder / "modules.json", [_MODULE | {"path": _NESTED}])


def _write_model(vectors: Vectors, folder: Path, tensor: str) -> None:
    # The tokenizer has the unknown token after all words; its vector is zero, so that it does not change a sum.
    write_matrix(folder / _MODEL, tensor, text_encoder.bake_weights(vectors), {"format": "pt"})
    _write_json(folder / _TOKENIZER, _describe_tokenizer(vectors))


def _describe_model(vectors: Vectors, name: str) -> str:
    """Return the model card: what is known of the vectors, and what their author has to add."""
    settings = [
        f"- {section}: " + ", ".join(f"`{key}={value}`" for key, value in values.items() if value is not None)
        for section, values in vectors.settings.items()
    ]
    template = Template((files("swivel") / "data" / "model_card.md").read_text(encoding="utf-8"))
    return template.substitute(
        name=name,
        words=f"{len(vectors):,}",
        dim=vectors.dim,
        version=__version__,
        settings="\n".join(settings) or "The settings are not known: the vectors are another tool's.",
    )


def _write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, ensure_ascii=False, indent=1).encode())


def _describe_tokenizer(vectors: Vectors) -> dict[str, Any]:
    labels = vectors.vocabulary.tokens
    config = text_encoder.find_tokenizer(vectors)
    vocabulary = {label: number for number, label in enumerate(labels)}
    phrases = [label for label in labels if len(label.split()) > 1]

    steps: list[dict[str, Any]] = []
    splitter: dict[str, Any] = {"type": "WhitespaceSplit"}
    if config.tokenizer != "whitespace":
        spellings = _SPELLINGS.items()
        steps = [{"type": "Replace", "pattern": {"String": char}, "content": new} for char, new in spellings]
        word = _WORD.replace("JOINERS", _JOINERS + "_" * config.keep_underscores)
        splitter = {"type": "Split", "pattern": {"Regex": word}, "behavior": "Removed", "invert": True}
    if config.normalization != "none":
        steps.insert(0, {"type": config.normalization})
    if config.lowercase:
        steps.append({"type": "Lowercase"})

    # Add brackets until the unknown token differs from every label.
    unknown = _UNKNOWN
    while unknown in vocabulary:
        unknown = f"[{unknown}]"

    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[label], "content": label, **_TOKEN_FLAGS} for label in phrases],
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {**vocabulary, unknown: len(vocabulary)}, "unk_token": unknown},
    }


def find_tokenizer(path: Path) -> Path:
    """Return where the tokenizer of a folder is: next to the matrix, possibly in the folder of the module."""
    nested = path / _NESTED
    return nested / _TOKENIZER if nested.exists() else path / _TOKENIZER


def read_static(path: Path) -> Vectors:
    """Read a folder of model2vec or of a StaticEmbedding; the words are the tokens of its tokenizer."""
    # The token for unknown words is left out if its vector is all zeros.
    tokenizer = find_tokenizer(path)
    folder = tokenizer.parent

    matrices = read_tensors(folder / _MODEL).matrices
    name = next((name for name in ("embeddings", "embedding.weight") if name in matrices), None)
    if name is None:
        raise StorageError(f"{folder / _MODEL}: no float matrix called 'embeddings' or 'embedding.weight'")

    with reading(tokenizer, "JSON", (ValueError, RecursionError)):
        content = json.loads(tokenizer.read_bytes())
    with reading(tokenizer, "a tokenizer with a vocabulary", (ValueError, KeyError, TypeError, AttributeError)):
        tokens, unknown = _read_tokens(content)

    values = matrices[name]
    if len(tokens) != len(values):
        raise StorageError(f"{tokenizer}: {len(tokens):,} tokens, but {len(values):,} vectors")

    if unknown is not None and not values[unknown].any():
        del tokens[unknown]
        if unknown == len(tokens):
            values = values[:unknown]  # not copied: the usual place
        else:
            check_memory(f"reading {folder / _MODEL}", values.nbytes)
            values = np.delete(values, unknown, axis=0)

    return make_vectors(folder / _MODEL, tokens, values)


def _read_tokens(tokenizer: Mapping[str, Any]) -> tuple[list[str], int | None]:
    """Return the tokens of a tokenizer in the order of their ids, and the id of the unknown token or None."""
    model = tokenizer["model"]
    # WordLevel and WordPiece models have ids of tokens, Unigram models a list of tokens and scores.
    if isinstance(model["vocab"], dict):
        ids = dict(model["vocab"])
    else:
        ids = {token: number for number, (token, _) in enumerate(model["vocab"])}
    ids.update((token["content"], token["id"]) for token in tokenizer.get("added_tokens") or ())

    # The former name the unknown token, and the latter have its id.
    unknown = ids.get(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")

    words: list[str | None] = [None] * len(ids)
    for word, number in ids.items():
        if type(number) is not int or not 0 <= number < len(ids) or words[number] is not None:
            raise ValueError(f"{word!r} has the id {number!r}, which is used twice or not below {len(ids):,}")
        word.encode()  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair
        words[number] = word

    if unknown is not None and not (type(unknown) is int and 0 <= unknown < len(ids)):
        raise ValueError(f"the id of the unknown token is {unknown!r}, expected an integer below {len(ids):,}")

    return [word for word in words if word is not None], unknown
