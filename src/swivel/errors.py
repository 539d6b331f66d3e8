"""Everything that Swivel raises on purpose.

Each message says what is wrong with which value, where, and what to do::

    SwivelError
    ├── ConfigError          a setting has a wrong value, or two do not go together (exit status 2)
    ├── CorpusError          text cannot be read
    ├── VocabularyError      a vocabulary is empty, or a list of tokens is malformed
    ├── CountsError          counts are negative, not finite, or do not fit their vocabularies
    ├── MemoryBudgetError    the job cannot be done inside --memory
    ├── StorageError         a folder or file cannot be read or written
    │   ├── UnfinishedFolder   it has no manifest: the stage that writes it did not end
    │   ├── DamagedFolder      its parts are not what its manifest says
    │   ├── FolderExists       it is finished already and nobody asked to overwrite it
    │   └── FolderLocked       another process is writing it
    ├── TrainingError        training cannot start
    │   └── Diverged           the loss is no longer finite
    ├── ClusterError         a cluster cannot be reached, has stopped answering, or lost what cannot be made again
    ├── UnknownToken         a token that the vocabulary does not have (also a KeyError)
    ├── EvaluationError      a test set cannot be read, or nothing of it is known
    └── MissingExtra         an optional library is not installed
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


class SwivelError(Exception):
    """Base of all errors that Swivel raises on purpose."""

    exit_status = 1


class ConfigError(SwivelError, ValueError):
    """A setting has a wrong value, or two settings do not go together."""

    exit_status = 2


class CorpusError(SwivelError):
    """Text cannot be read."""


class VocabularyError(SwivelError):
    """A vocabulary is empty, or a list of tokens is malformed."""


class CountsError(SwivelError, ValueError):
    """Counts are negative, not finite, or do not fit their vocabularies."""


class MemoryBudgetError(SwivelError):
    """The job cannot be done inside the memory it was given."""


class StorageError(SwivelError):
    """A folder or file cannot be read or written."""


class UnfinishedFolder(StorageError):
    """A folder without a manifest: the stage that writes it did not end."""


class DamagedFolder(StorageError):
    """A folder whose parts are not what its manifest says."""


class FolderExists(StorageError):
    """A finished folder that nobody asked to overwrite."""


class FolderLocked(StorageError):
    """A folder that another process is writing."""


class TrainingError(SwivelError):
    """Training cannot start."""


class Diverged(TrainingError):
    """The loss is no longer finite."""


class ClusterError(SwivelError):
    """A cluster cannot be reached, has stopped answering, or lost what cannot be made again."""


class UnknownToken(SwivelError, KeyError):
    """A token that the vocabulary does not have."""

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return str(self.args[0])


class EvaluationError(SwivelError):
    """A test set cannot be read, or nothing of it is known."""


class MissingExtra(SwivelError, ImportError):
    """An optional library is not installed."""


def missing_extra(what: str, library: str, extra: str) -> MissingExtra:
    """Return the error that names the extra to install.

    >>> str(missing_extra("plots", "matplotlib", "plot"))
    "plots need matplotlib: pip install 'swivel-embeddings[plot]'"
    """
    return MissingExtra(f"{what} need {library}: pip install 'swivel-embeddings[{extra}]'")


@contextlib.contextmanager
def clear_errors(name: object, kind: type[SwivelError] = StorageError) -> Iterator[None]:
    """Turn the operating system's errors into one line of ours, which names the file.

    >>> with clear_errors("counts"):
    ...     open("no/such/file")
    Traceback (most recent call last):
    swivel.errors.StorageError: no/such/file: No such file or directory
    """
    try:
        yield
    except OSError as error:
        place = name if error.filename is None or isinstance(error.filename, int) else os.fsdecode(error.filename)
        raise kind(f"{place}: {error.strerror or error}") from error
