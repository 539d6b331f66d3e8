"""Events: codes of the same person and about the same time, against a count over all pairs of events."""

from __future__ import annotations

import itertools
import math
import random
import sqlite3
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

import swivel
from import_sources import write_text
from swivel.cli import cli
from swivel.counts import Matrix
from swivel.errors import ConfigError, CountsError, SwivelError

Event = tuple[str, datetime, str]  # person, time, code
NAMES: dict[str, Any] = {"by": "patient", "time": "date", "code": "code"}


def make_events(seed: int, events: int = 500) -> list[Event]:
    """Return events of 40 persons, in no order, some at the same time and some twice."""
    rng = random.Random(seed)
    begin = datetime(2026, 1, 1)
    drawn = [
        (f"p{rng.randrange(40)}", begin + timedelta(hours=6 * rng.randrange(240)), "abcdefgh"[rng.randrange(8)])
        for _ in range(events)
    ]
    return drawn + drawn[:20]


def count_naively(
    events: list[Event], gap: timedelta | None, counting: str = "persons"
) -> dict[tuple[str, str], float]:
    """Return the number of persons, windows or pairs of events for each pair of codes in alphabetic order."""
    by_person = defaultdict(list)
    for person, time, code in events:
        by_person[person].append((time, code))

    counts: Counter[tuple[str, str]] = Counter()
    for own in by_person.values():
        pairs: Counter[tuple[str, str]] = Counter()
        windows = defaultdict(set)
        first = min(time for time, _ in own)
        for (time, code), (other_time, other) in itertools.combinations(own, 2):
            pair = min(code, other), max(code, other)
            if code != other and (gap is None or abs(time - other_time) <= gap):
                pairs[pair] += 1
            if code != other and gap and (time - first) // gap == (other_time - first) // gap:
                windows[pair].add((time - first) // gap)
            elif code != other and time == other_time:
                windows[pair].add((time - first) // timedelta(microseconds=1))
        if counting == "windows":
            counts.update({pair: len(numbers) for pair, numbers in windows.items()})
        else:
            counts.update(pairs if counting == "events" else dict.fromkeys(pairs, 1))
    return dict(counts)


def half_of(matrix: Matrix) -> dict[tuple[str, str], float]:
    pairs = itertools.combinations_with_replacement(sorted(matrix.rows.tokens), 2)
    counts = {pair: matrix.count(*pair) for pair in pairs}
    assert matrix.total == 2 * sum(counts.values())
    return {pair: count for pair, count in counts.items() if count}


@pytest.mark.parametrize("counting", ["persons", "windows", "events"])
@pytest.mark.parametrize(
    ("within", "gap"),
    [("3d", timedelta(days=3)), ("6h", timedelta(hours=6)), ("0s", timedelta()), (None, None)],
)
def test_events_are_counted_as_by_all_pairs(within: str | None, gap: timedelta | None, counting: str) -> None:
    if counting == "windows" and within is None:
        return
    events = make_events(1)
    times = {"time": 2, "within": within} if within else {}
    matrix = swivel.import_counts(events, by=1, code=3, counting=counting, **times)  # type: ignore[arg-type]
    assert half_of(matrix) == count_naively(events, gap, counting)
    assert matrix.is_symmetric


def test_windows_follow_each_other_from_the_first_event_on() -> None:
    begin = datetime(2026, 1, 31)
    days = [("tea", 0), ("jam", 29), ("tea", 30), ("jam", 31), ("milk", 59)]
    events = [("ann", begin + timedelta(days=day), code) for code, day in days]
    # A microsecond before its end, an event is in the window still, also after 98 years.
    late = begin + timedelta(days=30 * 1_200)
    events += [("ann", late - timedelta(microseconds=1), "milk"), ("ann", late, "tea")]
    matrix = swivel.import_counts(events, by=1, time=2, code=3, within="30d", counting="windows")
    assert half_of(matrix) == {("jam", "tea"): 2.0, ("jam", "milk"): 1.0, ("milk", "tea"): 1.0}


def test_parts_of_little_memory_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.counts.importers.events.PIECE", 64)
    events = make_events(2)
    settings: dict[str, Any] = {"by": 1, "time": 2, "code": 3, "within": "5d", "counting": "events"}
    whole = swivel.import_counts(events, **settings)
    monkeypatch.setattr("swivel.counts.importers.events._BYTES_PER_EVENT", 1 << 20)  # parts of a few persons each
    for threads in (1, 3):
        parts = swivel.import_counts(events, memory="64MiB", threads=threads, **settings)
        assert parts.fingerprint == whole.fingerprint
    assert half_of(parts) == count_naively(events, timedelta(days=5), "events")


def write_source(kind: str, events: list[Event], folder: Path) -> Any:
    frame = pd.DataFrame(events, columns=["patient", "date", "code"]).assign(ward="north")
    match kind:
        case "csv":
            frame.to_csv(folder / "events.csv", index=False)
            return folder / "events.csv"
        case "zones":  # the same moments, an hour later in a zone that is an hour ahead
            lines = [f"{person},{time + timedelta(hours=1)}+01:00,{code}" for person, time, code in events]
            return write_text(folder / "zones.csv", "patient,date,code\n" + "\n".join(lines) + "\n")
        case "parquet":
            frame.to_parquet(folder / "events.parquet")
            return folder / "events.parquet"
        case "arrow":
            return pa.Table.from_pandas(frame)
        case "arrow texts":
            return pa.Table.from_pandas(frame.assign(date=frame["date"].astype(str)))
        case "texts":
            return frame.assign(date=frame["date"].astype(str))
        case "zoned frame":
            return frame.assign(date=frame["date"].dt.tz_localize("Europe/Berlin"))
    return frame


@pytest.mark.parametrize("kind", ["csv", "zones", "parquet", "arrow", "arrow texts", "frame", "texts", "zoned frame"])
def test_every_kind_of_table_has_the_same_events(kind: str, tmp_path: Path) -> None:
    events = make_events(3)
    matrix = swivel.import_counts(write_source(kind, events, tmp_path), **NAMES, within="2d")
    assert half_of(matrix) == count_naively(events, timedelta(days=2))


def test_rows_of_a_database_and_numbers_as_times_are_read() -> None:
    events = make_events(4)
    database = sqlite3.connect(":memory:")
    database.execute("create table events (patient text, day real, code text)")
    days = [(person, time.timestamp() / 86_400, code) for person, time, code in events]
    database.executemany("insert into events values (?, ?, ?)", days)
    expected = count_naively(events, timedelta(days=7))
    query = "select * from events"
    for by, time, code in ((1, 2, 3), ("patient", "day", "code")):
        matrix = swivel.import_counts(database.execute(query), by=by, time=time, code=code, within=7)
        assert half_of(matrix) == expected
    # Rows of SQLAlchemy and of sqlite3 are no tuples, and the former's results have no description.
    database.row_factory = sqlite3.Row
    assert half_of(swivel.import_counts(database.execute(query), by=1, time=2, code=3, within=7)) == expected
    result = QueryResult(list(map(list, days)))
    assert half_of(swivel.import_counts(result, by="patient", time="day", code="code", within=7)) == expected


class QueryResult(list[Any]):
    """Rows with the names of their fields."""

    def keys(self) -> list[str]:
        return ["patient", "day", "code"]


@pytest.mark.parametrize(
    ("persons", "message"),
    [
        (["ann", ""], "item 2: the label is empty"),
        (["ann", "b\ud800"], "item 2: the label .* has a lone surrogate"),
        ([b"ann", b"b\xff"], "item 2: a label is not valid UTF-8"),
        (["ann", 1.5], "item 2: labels must be strings or integers, got float 1.5"),
    ],
)
def test_persons_that_are_no_text_are_refused_with_their_place(persons: list[Any], message: str) -> None:
    with pytest.raises(CountsError, match=message):
        swivel.import_counts(list(zip(persons, ["tea", "jam"], strict=True)), by=1, code=2)


def test_long_tables_of_orders_are_baskets() -> None:
    baskets = [["tea", "milk", "tea"], ["tea", "jam", "milk"], ["jam"]]
    rows = [(number, item) for number, basket in enumerate(baskets) for item in basket]
    frame = pd.DataFrame(rows, columns=["order", "item"])
    matrix = swivel.import_counts(frame, by="order", code="item")
    assert half_of(matrix) == half_of(swivel.import_counts(baskets, format="baskets"))


EVENTS = "patient,date,code\nann,2026-01-01,tea\nann,2026-01-20,jam\nbob,2026-01-05,tea\n"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"by": "patient"}, "pass code"),
    ({"code": "code"}, "code is for events: pass by"),
    ({"counting": "events"}, "counting is for events: pass by"),
    ({"by": "patient", "code": "code", "counting": "windows"}, "windows need times: pass time and within"),
    ({**NAMES}, "time and within need each other"),
    ({**NAMES, "within": "a month"}, "within must be a time such as 30d or 12h, or a number, got 'a month'"),
    ({**NAMES, "within": "30"}, "line 2: the time '2026-01-01' is not a number; pass within with a unit"),
    ({**NAMES, "time": "code", "within": "30d"}, "line 2: the time b'tea' is no date such as 2026-01-31"),
    ({**NAMES, "within": "30d", "fields": "1,2,3"}, "instead of fields"),
    ({**NAMES, "within": "30d", "sides": "apart"}, "counts in both orders: omit sides"),
    ({**NAMES, "within": "30d", "suppressed_below": 11}, "has no effect on events, whose counts are all there"),
    ({**NAMES, "within": "30d", "largest_basket": 1}, "a person has 2 different codes, which make 1 pairs"),
    ({**NAMES, "within": "30d", "by": "person", "header": True}, "no field 'person'; it has patient, date, code"),
    ({**NAMES, "within": "1d"}, "there are no counts"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_mistakes_are_refused_in_one_line(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write_text(tmp_path / "events.csv", EVENTS)
    with pytest.raises(SwivelError, match=message) as refused:
        swivel.import_counts(file, **settings)
    assert "\n" not in str(refused.value)


def test_events_without_a_time_or_a_table_are_refused() -> None:
    with pytest.raises(CountsError, match="row 2: the time is missing or not finite"):
        frame = pd.DataFrame({"patient": ["ann", "ann"], "date": [1.0, math.nan], "code": ["tea", "jam"]})
        swivel.import_counts(frame, **NAMES, within="3")
    with pytest.raises(ConfigError, match="by is for events in a table"):
        swivel.import_counts({("ann", "tea"): 1}, by="1", code="2")


def test_the_command_line_counts_events(tmp_path: Path) -> None:
    file = write_text(tmp_path / "events.csv", EVENTS)
    arguments = ["import", file, "--by", "patient", "--time", "date", "--code", "code", "--within", "30d"]
    result = CliRunner().invoke(cli, [*map(str, arguments), "-o", str(tmp_path / "matrix")])
    assert result.exit_code == 0, result.output
    assert half_of(swivel.open_matrix(tmp_path / "matrix")) == {("jam", "tea"): 1.0}
