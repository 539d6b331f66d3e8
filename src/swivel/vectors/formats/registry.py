"""The table of all formats: name, reader, writer and file suffixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swivel.vectors import Vectors, load
from swivel.vectors.formats.arrow import read_arrow, read_parquet, write_arrow, write_parquet
from swivel.vectors.formats.npy_npz import read_npy, read_npz, write_npy, write_npz
from swivel.vectors.formats.projector import read_projector, write_projector
from swivel.vectors.formats.safetensors import read_vectors_tensors, write_vectors_tensors
from swivel.vectors.formats.static_models import read_static, write_model2vec, write_sentence_transformers
from swivel.vectors.formats.word2vec_binary import read_binary, write_binary
from swivel.vectors.formats.word2vec_text import read_text, write_glove, write_word2vec_text


@dataclass(frozen=True, slots=True)
class Format:
    """Reader, writer and file suffixes of a format."""

    read: Callable[[Path], Vectors]
    write: Callable[[Vectors, Path], None]
    suffixes: tuple[str, ...] = ()
    is_folder: bool = False


FORMATS = {
    "word2vec": Format(read_binary, write_binary, (".bin",)),
    "word2vec-text": Format(read_text, write_word2vec_text, (".txt", ".w2v")),
    "fasttext": Format(read_text, write_word2vec_text, (".vec",)),
    "glove": Format(read_text, write_glove),
    "gensim": Format(read_binary, write_binary),
    "npy": Format(read_npy, write_npy, (".npy",)),
    "npz": Format(read_npz, write_npz, (".npz",)),
    "safetensors": Format(read_vectors_tensors, write_vectors_tensors, (".safetensors",)),
    "parquet": Format(read_parquet, write_parquet, (".parquet", ".pq")),
    "arrow": Format(read_arrow, write_arrow, (".arrow", ".feather")),
    "projector": Format(read_projector, write_projector, is_folder=True),
    "sentence-transformers": Format(read_static, write_sentence_transformers, is_folder=True),
    "model2vec": Format(read_static, write_model2vec, is_folder=True),
    "swivel": Format(load, lambda vectors, path: vectors.save(path), is_folder=True),
}
