"""Folders of static embedding models: model2vec, and sentence-transformers with a StaticEmbedding module.

Both libraries read `model.safetensors` (one matrix, one row per token) and `tokenizer.json`, and represent a text by
the mean of its token vectors. The last row is zero and stands for unknown words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swivel._version import __version__
from swivel.errors import StorageError, clear_errors
from swivel.storage import build_folder, write_file
from swivel.vectors import Vectors
from swivel.vectors.formats.safetensors import read_tensors, write_matrix
from swivel.vectors.formats.static_tokenizer import describe_tokenizer, read_tokens
from swivel.vectors.formats.validate import make_vectors

MODEL = "model.safetensors"
TOKENIZER = "tokenizer.json"
NESTED = "0_StaticEmbedding"
_MODULE = {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}


def write_model2vec(vectors: Vectors, path: Path) -> None:
    """Write a folder for `model2vec.StaticModel.from_pretrained`; `SentenceTransformer` also reads it."""
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
        _write_model(vectors, folder / NESTED, "embedding.weight")
        _write_json(folder / "config_sentence_transformers.json", config)
        _write_json(folder / "modules.json", [_MODULE | {"path": NESTED}])


def _write_model(vectors: Vectors, folder: Path, tensor: str) -> None:
    # The tokenizer has the unknown token after all words; its vector is zero.
    unknown = np.zeros((1, vectors.dim), np.float32)
    _write_json(folder / TOKENIZER, describe_tokenizer(vectors.vocabulary.tokens))
    write_matrix(folder / MODEL, tensor, np.concatenate([vectors.vectors, unknown]), {"format": "pt"})


def _write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, ensure_ascii=False, indent=1).encode())


def read_static(path: str | Path) -> Vectors:
    """Read a folder of model2vec or of a StaticEmbedding; the words are the tokens of its tokenizer.

    The token for unknown words is left out if its vector is all zeros.
    """
    path = Path(path)
    folder = path / NESTED if (path / NESTED / MODEL).exists() else path

    matrices = read_tensors(folder / MODEL).matrices
    name = next((name for name in ("embeddings", "embedding.weight") if name in matrices), None)
    if name is None:
        raise StorageError(f"{folder / MODEL}: no float matrix called 'embeddings' or 'embedding.weight'")

    tokens, unknown = read_tokens(folder / TOKENIZER, _read_json(folder / TOKENIZER))
    values = matrices[name]
    if len(tokens) != len(values):
        raise StorageError(f"{folder / TOKENIZER}: {len(tokens):,} tokens, but {len(values):,} vectors")

    if unknown is not None and not values[unknown].any():
        values = np.delete(values, unknown, axis=0)
        del tokens[unknown]

    return make_vectors(folder / MODEL, tokens, values)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        with clear_errors(path):
            value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: not JSON ({error})") from error

    if not isinstance(value, dict):
        raise StorageError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
