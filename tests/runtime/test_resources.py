"""Cores and memory that a process may use, with the limits of containers; parsing and formatting of sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swivel.errors import ConfigError
from swivel.runtime import resources
from swivel.runtime.resources import ResourceEstimate, count_cores, format_bytes, free_memory, parse_bytes

GIB = 2**30


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cgroup folder on a machine with 8 cores and 100 GiB."""
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    monkeypatch.setattr(resources, "_free_machine_memory", lambda: 100 * GIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("max 100000", 8),
        ("1 0", 8),
        ("", 8),
    ],
)
def test_cores_are_limited_by_the_quota_of_a_container(cgroup: Path, quota: str, cores: int) -> None:
    assert count_cores() == 8
    (cgroup / "cpu.max").write_text(quota + "\n")
    assert count_cores() == cores


def test_cores_are_those_of_the_machine_without_affinity(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cores() == 1


def test_page_cache_of_a_container_counts_as_free(cgroup: Path) -> None:
    assert free_memory() == 100 * GIB

    (cgroup / "memory.max").write_text(f"{16 * GIB}\n")
    (cgroup / "memory.current").write_text(f"{15 * GIB}\n")

    assert free_memory() == 1 * GIB

    (cgroup / "memory.stat").write_text(f"anon {5 * GIB}\ninactive_file {7 * GIB}\nactive_file {2 * GIB}\n")
    assert free_memory() == 10 * GIB

    (cgroup / "memory.max").write_text("max\n")
    assert free_memory() == 100 * GIB


def test_cgroup_v1_is_supported(cgroup: Path) -> None:
    (cgroup / "memory").mkdir()
    (cgroup / "memory/memory.limit_in_bytes").write_text(str(16 * GIB))
    (cgroup / "memory/memory.usage_in_bytes").write_text(str(15 * GIB))
    stat = f"inactive_file 1\ntotal_cache 9\ntotal_inactive_file {3 * GIB}\ntotal_active_file {GIB}\n"
    (cgroup / "memory/memory.stat").write_text(stat)
    assert free_memory() == 5 * GIB


@pytest.mark.parametrize("stat", ["", "one two three\n", "inactive_file many\n"])
def test_malformed_statistics_count_as_no_page_cache(cgroup: Path, stat: str) -> None:
    (cgroup / "memory.max").write_text(str(2 * GIB))
    (cgroup / "memory.current").write_text(str(3 * GIB))
    (cgroup / "memory.stat").write_text(stat)
    assert free_memory() == 0


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1 XB", "0", "0.1"])
def test_malformed_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="memory must be"):
        parse_bytes(text)


def test_sizes_are_formatted_with_binary_units() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 3 * 2**40)] == ["0 B", "1023 B", "1.0 KiB", "3.0 TiB"]


def test_small_estimates_are_no_number_of_bytes() -> None:
    assert str(ResourceEstimate("a job", 170, 3 * 2**20)) == "about 3.0 MiB of memory and less than 1 MiB of disk"
