"""Settings of importing: defaults, validation and help texts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from swivel.config import FLAG, POSITIVE_INT, TEXT, check_fields, config_field, one_of
from swivel.errors import ConfigError
from swivel.runtime.numbers import is_integer
from swivel.storage.manifest import one_line

FORMATS = ("triples", "edges", "baskets", "parquet", "arrow", "npz", "mtx", "glove")
SIDES = ("apart", "same", "mirrored", "undirected")
SEPARATORS = {"tab": b"\t", "comma": b",", "semicolon": b";", "bar": b"|", "space": b" "}

_TEXT = ("triples", "edges", "baskets")
# Formats to which a setting applies.
_TAKEN_BY = {
    "fields": ("triples", "edges", "parquet", "arrow", "memory"),
    "header": _TEXT,
    "separator": _TEXT,
    "comment": _TEXT,
    "window": ("baskets",),
    "weight": ("baskets",),
    "largest_basket": ("baskets",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """Settings of `import_counts`. A value of None is determined from the source.

    >>> ImportConfig(fields="user,page").field_names
    ('user', 'page')
    """

    format: str | None = config_field(
        None, "format of the source; default: determined by the file name", one_of(*FORMATS)
    )
    sides: str | None = config_field(
        None,
        "relation of rows and columns: different things (apart), the same things with direction (same), the same "
        "things with every pair given in both orders (mirrored) or once (undirected, counted in both orders); "
        "default: apart, or what the format implies",
        one_of(*SIDES),
    )
    fields: str | None = config_field(
        None,
        "names, or positions from 1, of the row, the column and the count in a table, such as user,page,visits; with "
        "only two, every count is 1; default: all fields of a table of two or three",
        TEXT,
    )
    header: bool = config_field(False, "the first line of a text file is a header", FLAG)
    separator: str | None = config_field(
        None, "separator of the fields of a line; default: detected from the file", one_of(*SEPARATORS)
    )
    comment: str | None = config_field(None, "skip lines that begin with this text, such as #", TEXT)
    window: int | None = config_field(
        None, "baskets: count items at most this far apart, in order; default: all pairs of a basket", POSITIVE_INT
    )
    weight: str = config_field(
        "harmonic", "weight of an item at distance t in a window: 1/t, or 1", one_of("harmonic", "uniform")
    )
    largest_basket: int = config_field(
        5_000, "baskets without a window: longest basket allowed, because all its pairs are counted", POSITIVE_INT
    )
    drop_empty: bool = config_field(False, "omit rows and columns of a matrix that have no counts", FLAG)

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.field_names) not in (0, 2, 3) or not all(self.field_names):
            raise ConfigError(
                f"fields must be two or three names such as user,page,visits, got {self.fields!r}", argument="fields"
            )

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names or positions of the row, the column and the count; () if `fields` is None."""
        return () if self.fields is None else tuple(name.strip() for name in self.fields.split(","))


def refuse_idle_settings(config: ImportConfig, format: str, name: str) -> None:
    """Raise ConfigError for a setting that has no effect on this format."""
    changes = {field.name for field in fields(config) if getattr(config, field.name) != field.default}
    for setting, formats in _TAKEN_BY.items():
        if setting in changes and format not in formats:
            takers = ", ".join(kind for kind in formats if kind != "memory")
            text = f"{setting} applies to {takers}, but {name} is read as {format}; omit it, or pass format"
            raise ConfigError(text, argument=(setting, "format"))
    if "weight" in changes and config.window is None:
        raise ConfigError("weight applies to distances in a window; pass window", argument=("weight", "window"))


def pick_fields(config: ImportConfig, names: list[str] | None, width: int, where: str) -> tuple[int, ...]:
    """Return the positions, from 0, of the row, the column and optionally the count in the fields of a table.

    >>> pick_fields(ImportConfig(fields="page,user"), ["user", "page", "day"], 3, "log.csv")
    (1, 0)
    """
    if not config.field_names:
        if width < 2:
            raise ConfigError(f"{where}: {width} field, but a row and a column are needed; pass the separator")
        if width > 3:
            example = ",".join(map(one_line, names[:3] if names else "123"))
            raise ConfigError(
                f"{where}: {width} fields; pass the row, the column and the count, such as fields='{example}' "
                "(a crosstab, with one column per label, is imported in Python, as an array with labels)"
            )
        return tuple(range(width))
    return tuple(_find_field(name, names, width, where) for name in config.field_names)


def _find_field(name: str, names: list[str] | None, width: int, where: str) -> int:
    if names is not None and name in names:
        return names.index(name)
    if is_integer(name) and len(name) < 10 and 1 <= int(name) <= width:
        return int(name) - 1

    has = f"{width} fields without names (pass header if the first line has them)"
    if names is not None:
        has = ", ".join(map(one_line, names))

    raise ConfigError(f"{where}: no field {name!r}; it has {has}")
