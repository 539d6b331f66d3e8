"""Settings of importing: defaults, validation and help texts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import NamedTuple

from swivel.config import (
    FLAG,
    NATURAL,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    TEXT,
    Rule,
    check_fields,
    config_field,
    one_of,
)
from swivel.errors import ConfigError
from swivel.runtime.display import escape_controls
from swivel.runtime.numbers import is_integer

SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
DURATION = Rule(
    lambda v: isinstance(v, str) and re.fullmatch(r"\d{1,12}(\.\d{1,6})?[wdhms]?", v) is not None,
    "a time such as 30d or 12h, or a number",
)
SIDES = ("apart", "same", "mirrored", "undirected")
SEPARATORS = {"tab": b"\t", "comma": b",", "semicolon": b";", "bar": b"|", "space": b" "}


class FileFormat(NamedTuple):
    """What is known about a format of counts besides its content."""

    suffixes: tuple[str, ...]  # of the names of files
    reader: str  # module and function of this package, which is imported when it is used
    settings: tuple[str, ...] = ()  # fields of `ImportConfig` that apply to this format but not to all
    sides: str = "apart"  # relation of rows and columns if the settings do not give it
    may_be_packed: bool = False  # whether files may be compressed, or standard input
    is_alone: bool = False  # whether there can be only one file


_TEXT = ("header", "separator", "comment")
_EVENTS = ("by", "code", "time", "within", "counting", "largest_basket")
FORMATS = {
    "triples": FileFormat(
        (".tsv", ".csv", ".txt"), "delimited.read_triples", ("fields", *_TEXT, *_EVENTS), may_be_packed=True
    ),
    "edges": FileFormat(
        (".edges", ".edgelist"), "delimited.read_triples", ("fields", *_TEXT), "undirected", may_be_packed=True
    ),
    "baskets": FileFormat(
        (".baskets",), "baskets.read_basket_file", (*_TEXT, "largest_basket"), "mirrored", may_be_packed=True
    ),
    "crosstab": FileFormat((), "delimited.read_crosstab", ("separator", "comment"), may_be_packed=True),
    "parquet": FileFormat((".parquet", ".pq"), "arrow.read_parquet", ("fields", *_EVENTS)),
    "arrow": FileFormat((".arrow", ".arrows", ".feather", ".ipc"), "arrow.read_arrow", ("fields", *_EVENTS)),
    "npz": FileFormat((".npz",), "matrix_readers.read_npz", is_alone=True),
    "mtx": FileFormat((".mtx",), "matrix_readers.read_market", may_be_packed=True, is_alone=True),
    "graphml": FileFormat((".graphml",), "graphs.read_graphml", sides="undirected", is_alone=True),
    "gml": FileFormat((".gml",), "graphs.read_gml", sides="undirected", is_alone=True),
    "glove": FileFormat((".bin",), "matrix_readers.read_glove", sides="same", is_alone=True),
}
IN_MEMORY = FileFormat((), "", ("fields", *_EVENTS))  # an object
GRAPHS = ("edges", "graphml", "gml", "graph")  # formats of graphs; "graph" is an object of a library


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
    header: bool | None = config_field(
        None, "the first line of a text file is a header; default: detected by the numbers below names", FLAG
    )
    separator: str | None = config_field(
        None, "separator of the fields of a line; default: detected from the file", one_of(*SEPARATORS)
    )
    comment: str | None = config_field(None, "skip lines that begin with this text, such as #", TEXT)
    largest_basket: int = config_field(
        5_000,
        "longest basket, or number of codes of a person, allowed, because all its pairs are counted",
        POSITIVE_INT,
    )
    by: str | None = config_field(
        None,
        "of a table of events: name or position of the field with the person, order or session, whose codes are "
        "counted together",
        TEXT,
    )
    code: str | None = config_field(None, "of events: the field with what becomes the rows", TEXT)
    time: str | None = config_field(
        None, "of events: the field with their dates (as in ISO 8601) or numbers; default: any time counts", TEXT
    )
    within: str | None = config_field(
        None,
        "of events: longest time between two codes that are counted together, such as 30d (w, d, h, m or s), or a "
        "number if times are numbers",
        DURATION,
    )
    counting: str = config_field(
        "persons",
        "of events: count the persons that have two codes within that time, their windows that have both (as long as "
        "within, one after the other from the first event on), or all pairs of events within that time",
        one_of("persons", "windows", "events"),
    )
    suppressed_below: float | None = config_field(
        None,
        "counts below this limit were removed from the source: a cell that is not there has at most limit - 1, not 0",
        POSITIVE,
    )
    drop_empty: bool = config_field(False, "omit rows and columns of a matrix that have no counts", FLAG)

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.field_names) not in (0, 2, 3) or not all(self.field_names):
            raise ConfigError(
                f"fields must be two or three names such as user,page,visits, got {self.fields!r}", argument="fields"
            )
        if self.by is None:
            idle = next((name for name in ("code", "time", "within") if getattr(self, name) is not None), None)
            idle = "counting" if idle is None and self.counting != "persons" else idle
            if idle is not None:
                raise ConfigError(f"{idle} is for events: pass by, the field of the persons", argument=(idle, "by"))
        elif self.code is None or self.fields is not None:
            raise ConfigError("events have by, code and time instead of fields: pass code", argument="code")
        elif (self.time is None) != (self.within is None):
            raise ConfigError("time and within need each other: pass both, or none", argument=("time", "within"))
        elif self.counting == "windows" and self.within is None:
            raise ConfigError("windows need times: pass time and within", argument=("counting", "time", "within"))
        try:
            (self.comment or "").encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"comment must be text that UTF-8 can encode, got {self.comment!a}", argument="comment"
            ) from None

    @property
    def has_dates(self) -> bool:
        """Whether the third field has dates instead of numbers."""
        return self.within is not None and self.within[-1].isalpha()

    @property
    def longest_gap(self) -> float:
        """Longest time between events that are counted together: in microseconds if they have dates."""
        if self.within is None:
            return math.inf
        seconds = SECONDS.get(self.within[-1])
        return float(self.within) if seconds is None else float(self.within[:-1]) * seconds * 1e6

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names or positions of the row, the column and the count, or of the person, the code and the time of events.

        () if there are none.
        """
        if self.by is not None and self.code is not None:
            return (self.by, self.code) if self.time is None else (self.by, self.code, self.time)
        return () if self.fields is None else tuple(name.strip() for name in self.fields.split(","))


STEP_WEIGHTS = ("uniform", "harmonic", "geometric")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkConfig:
    """How nodes of a graph are counted that are on one random walk. A value of None follows from the graph."""

    walks: int | None = config_field(
        None,
        "of a graph: count two nodes that are up to this many steps apart on a random walk; 0: as many as suit the "
        "graph; default: only edges are counted",
        NATURAL,
    )
    step_weights: str = config_field(
        "uniform", "weight of nodes t steps apart on a walk: 1, 1/t or 2^(1-t)", one_of(*STEP_WEIGHTS)
    )
    smallest_count: float | None = config_field(
        None, "omit expected counts below this; default: none, or as many as a matrix of 1 GiB requires", NOT_NEGATIVE
    )
    walks_per_node: int | None = config_field(
        None,
        "sample so many walks for each node instead of computing expected counts; default: only for graphs that are "
        "too large to compute them",
        POSITIVE_INT,
    )
    p: float = config_field(1.0, "p of node2vec: more makes sampled walks return less often", POSITIVE)
    q: float = config_field(1.0, "q of node2vec: more keeps sampled walks nearer to where they were", POSITIVE)
    walk_seed: int = config_field(1, "seed of sampled walks", NATURAL)

    def __post_init__(self) -> None:
        check_fields(self)
        for field in fields(self):
            if self.walks is None and getattr(self, field.name) != field.default:
                raise ConfigError(f"{field.name} has no effect without walks; pass walks=10", argument=field.name)
        if self.is_sampled and self.smallest_count is not None:
            raise ConfigError("smallest_count is for expected counts, not for sampled walks", argument="smallest_count")

    @property
    def is_sampled(self) -> bool:
        """Whether walks are sampled, whatever the graph."""
        return self.walks_per_node is not None or (self.p, self.q) != (1.0, 1.0)


def refuse_idle_settings(config: ImportConfig, format: str, name: str) -> None:
    """Raise ConfigError for a setting that has no effect on this format."""
    changes = {field.name for field in fields(config) if getattr(config, field.name) != field.default}
    some = {setting for each in FORMATS.values() for setting in each.settings}  # settings that not all formats have
    for setting in sorted(changes & some - set(FORMATS.get(format, IN_MEMORY).settings)):
        takers = ", ".join(kind for kind, each in FORMATS.items() if setting in each.settings)
        raise ConfigError(
            f"{setting} applies to {takers}, but {name} is read as {format}; omit it, or pass format",
            argument=(setting, "format"),
        )
    if "largest_basket" in changes and format != "baskets" and config.by is None:
        raise ConfigError(
            f"largest_basket applies to baskets and events, but {name} is read as {format}; pass by, or format",
            argument=("largest_basket", "by", "format"),
        )


def pick_fields(config: ImportConfig, names: list[str] | None, width: int, where: str) -> tuple[int, ...]:
    """Return the positions, from 0, of the row, the column and optionally the count in the fields of a table.

    >>> pick_fields(ImportConfig(fields="page,user"), ["user", "page", "day"], 3, "log.csv")
    (1, 0)
    """
    if not config.field_names:
        if width < 2:
            raise ConfigError(f"{where}: {width} field, but a row and a column are needed; pass the separator")
        if width > 3:
            raise ConfigError(
                f"{where}: {width:,} fields; pass those of the row, the column and the count, such as fields='1,2,3'; "
                "or format='crosstab' for a table with a column per label"
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
        has = ", ".join(map(escape_controls, names))

    raise ConfigError(f"{where}: no field {name!r}; it has {has}")
