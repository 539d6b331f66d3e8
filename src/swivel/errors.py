"""The exceptions that Swivel raises.

Each message states what is wrong, with which value, where, and what to do. Python arguments are written as in Python;
the command line shows its flags instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

IS_TEXT_HINT = " (pass texts as a list of strings)"  # end of a message that the command line leaves out


class SwivelError(Exception):
    """Base class of all Swivel exceptions; `exit_status` is what the command line returns.

    `argument` names the arguments that the message mentions; the command line shows their flags instead.
    """

    exit_status = 1

    def __init__(self, message: object = "", *, argument: str | Iterable[str] = ()) -> None:
        super().__init__(message)
        self.arguments = (argument,) if isinstance(argument, str) else tuple(argument)


class ConfigError(SwivelError, ValueError):
    """A setting is invalid, or two settings conflict."""

    exit_status = 2


class CorpusError(SwivelError):
    """A text cannot be read or decoded."""


class VocabularyError(SwivelError):
    """A vocabulary is empty or malformed, or a format cannot store its labels."""


class CountsError(SwivelError, ValueError):
    """Counts are negative, not finite, or do not match their vocabularies."""


class MemoryBudgetError(SwivelError):
    """The job does not fit in the memory limit."""


class StorageError(SwivelError):
    """A folder or file cannot be read or written."""


class UnfinishedFolder(StorageError):
    """A result folder has no manifest, because the stage that writes it was interrupted."""


class DamagedFolder(StorageError):
    """The files of a result folder differ from its manifest."""


class FolderExists(StorageError):
    """The output folder is complete and `overwrite` is False."""


class FolderLocked(StorageError):
    """Another process is writing to the folder."""


class TrainingError(SwivelError):
    """Training cannot start."""


class Diverged(TrainingError):
    """The loss is no longer finite."""


class ClusterError(SwivelError):
    """A cluster is unreachable, does not respond, or lost data that cannot be recomputed."""


class UnknownToken(SwivelError, KeyError):
    """A token is not in the vocabulary."""

    def __str__(self) -> str:
        # KeyError.__str__ would return the repr of the message.
        return str(self.args[0])


class EvaluationError(SwivelError):
    """A test set cannot be read, or has no token of the vocabulary."""


class MissingExtra(SwivelError, ImportError):
    """An optional library is not installed."""


class SwivelWarning(UserWarning):
    """A command continues, but the user can improve something; the command line prints it as a message."""


def missing_extra(what: str, library: str, extra: str) -> MissingExtra:
    """Return a `MissingExtra` error that names the extra to install.

    >>> str(missing_extra("plots", "matplotlib", "plot"))
    "plots need matplotlib: pip install 'swivel-embeddings[plot]'"
    """
    return MissingExtra(f"{what} need {library}: pip install 'swivel-embeddings[{extra}]'")


@contextlib.contextmanager
def needs_extra(what: str, library: str, extra: str) -> Iterator[None]:
    """Convert an ImportError raised in the block into the error of `missing_extra`.

    >>> with needs_extra("plots", "matplotlib", "plot"):
    ...     import no_such_library
    Traceback (most recent call last):
    swivel.errors.MissingExtra: plots need matplotlib: pip install 'swivel-embeddings[plot]'
    """
    try:
        yield
    except ImportError as error:
        raise missing_extra(what, library, extra) from error


def first_line(error: object) -> str:
    """Return the first line of an error message; those of some libraries are several pages long."""
    return str(error).strip().split("\n")[0] or type(error).__name__


@contextlib.contextmanager
def clear_errors(name: object, kind: type[SwivelError] = StorageError) -> Iterator[None]:
    """Convert an OSError raised in the block into an error of class `kind` that names the file, or `name`.

    >>> with clear_errors("counts"):
    ...     open("no/such/file")
    Traceback (most recent call last):
    swivel.errors.StorageError: no/such/file: no such file or folder
    """
    try:
        yield
    except OSError as error:
        file = name
        if error.filename is not None and not isinstance(error.filename, int):  # an int is a file descriptor
            file = os.fsdecode(error.filename)

        reason = (
            "no such file or folder" if isinstance(error, FileNotFoundError) else error.strerror or first_line(error)
        )
        raise kind(f"{file}: {reason}") from error
