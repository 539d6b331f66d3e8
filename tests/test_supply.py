"""What Swivel is made with: the lock goes with pyproject.toml, licenses are listed, an audit does not pretend."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import licenses  # noqa: E402
import lock  # noqa: E402

import audit  # noqa: E402
import wheels  # noqa: E402
from swivel._version import __version__  # noqa: E402

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWN = PROJECT["name"]


def declared() -> list[Requirement]:
    """Return what pyproject.toml asks for, in every extra and dependency group."""
    lists = [PROJECT["dependencies"], *EXTRAS.values(), *GROUPS.values()]
    lines = [line for each in lists for line in each if isinstance(line, str)]  # not {include-group = "docs"}
    return [each for each in map(Requirement, lines) if each.name != OWN]


def is_met(requirement: Requirement, pins: dict[str, Requirement]) -> bool:
    name = canonicalize_name(requirement.name)
    version = lock.read_torch() if name == "torch" else lock.version_of(pins[name]) if name in pins else None
    return version is not None and requirement.specifier.contains(version, prereleases=True)


# The lock


def test_the_lock_has_all_that_the_project_asks_for() -> None:
    pins = lock.read_lock()
    assert [str(each) for each in declared() if not is_met(each, pins)] == [], "run make lock"


def test_the_lock_has_all_that_its_packages_ask_for() -> None:
    pins, missing = lock.read_lock(), []
    for name, pin in pins.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if package.version == lock.version_of(pin):
            wanted = [each for each in map(Requirement, package.requires or ()) if applies(each)]
            missing += [f"{name}: {each}" for each in wanted if not is_met(each, pins)]
    assert missing == [], "run make lock"


def applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def test_a_stale_lock_is_noticed() -> None:
    pins = {"numpy": Requirement("numpy==1.25.0")}
    assert [is_met(Requirement(line), pins) for line in ("numpy>=1.26", "scipy", "numpy>=1.20")] == [False, False, True]


def test_every_package_is_pinned_with_hashes() -> None:
    for block in lock.split_blocks(lock.LOCK.read_text(encoding="utf-8"))[1:]:
        assert lock.version_of(lock.read_block(block)), block
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block


def test_torch_and_its_cuda_packages_are_apart_and_no_address_is_named() -> None:
    text = lock.LOCK.read_text(encoding="utf-8")
    assert not [name for name in lock.read_lock() if lock.APART.fullmatch(name)]
    assert "://" not in text + lock.CONSTRAINTS.read_text(encoding="utf-8")
    assert "torch" not in lock.read_lock(lock.leave_apart(text + "torch==2.13.0\n    # via x\nnvidia-nccl-cu13==2.0\n"))


def test_the_classifiers_name_the_pythons_that_are_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    tried = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert tried is not None
    assert [f"python{version}" for version in named] == tried[1].split()


# Extras and the version


def named_by(extra: str) -> set[str]:
    """Return the packages of an extra, also through other extras."""
    requirements = list(map(Requirement, EXTRAS[extra]))
    inner = [named_by(name) for each in requirements if each.name == OWN for name in each.extras]
    return {each.name for each in requirements if each.name != OWN}.union(*inner)


def test_the_extra_all_has_what_every_extra_has() -> None:
    assert named_by("all") == set().union(*(named_by(extra) for extra in EXTRAS))


def test_parquet_files_need_no_gensim() -> None:
    assert named_by("parquet") == {"pyarrow"}


def test_the_citation_has_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation


def test_the_conda_recipe_has_the_version_and_the_requirements() -> None:
    recipe = (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8")
    assert f'{{% set version = "{__version__}" %}}' in recipe
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0].replace("pytorch", "torch")
    listed = {str(Requirement(line.strip(" -"))) for line in run.splitlines()}
    assert listed == {f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]}
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert re.findall("^    - (.* = .*)$", recipe, re.M) == scripts


def test_actions_are_pinned_by_commit() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    lines = [line for each in workflows for line in each.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert len(lines) > 5
    assert [line for line in lines if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_the_image_copies_only_what_docker_may_see() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    names = {name for line in copied for name in line.split()}
    seen = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in seen if line[0] == "!"} == names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_changelog_starts_with_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall("^## ([0-9.]+)", changelog, re.M)[0] == __version__


# Licenses


def test_the_page_lists_what_is_locked() -> None:
    listed = licenses.read_page(licenses.PAGE.read_text(encoding="utf-8"))
    pins = {name: lock.version_of(pin) for name, pin in lock.read_lock().items() if licenses.applies_here(name)}
    expected = pins | {"torch": lock.read_torch()}
    assert {name: each.version for name, each in listed.items() if name in expected} == expected, "run make licenses"
    assert listed.keys() <= lock.read_lock().keys() | {"torch"}


def test_the_page_says_of_licenses_what_the_packages_say() -> None:
    listed = licenses.read_page(licenses.PAGE.read_text(encoding="utf-8"))
    installed = list(licenses.read_installed(listed))
    assert len(installed) > 50
    assert [each for each in installed if listed[each.name] != each] == [], "run make licenses"


def test_what_is_always_installed_has_permissive_licenses_or_is_named() -> None:
    listed = licenses.read_page(licenses.PAGE.read_text(encoding="utf-8"))
    always = licenses.walk(PROJECT["dependencies"]) & listed.keys()
    assert {"numpy", "torch", "llvmlite"} <= always
    assert [listed[name] for name in always if not licenses.is_permissive(listed[name].license)] == []


def test_every_other_license_that_is_not_permissive_is_named_and_nothing_else_is() -> None:
    listed = licenses.read_page(licenses.PAGE.read_text(encoding="utf-8"))
    assert {name for name, each in listed.items() if not licenses.is_permissive(each.license)} == licenses.NAMED.keys()


@pytest.mark.parametrize(
    "license", ["GPL-3.0-only", "MIT AND LGPL-2.1-only", "", "Some Terms", "MIT AND (MPL-2.0 OR X)"]
)
def test_copyleft_and_unknown_licenses_stop_the_writing(license: str) -> None:
    with pytest.raises(ValueError, match="not permissive and not in NAMED"):
        licenses.write_rows([licenses.License("new", "1", license)], {})


# The audit


def report(**vulnerable: list[str]) -> str:
    packages = [
        {"name": name, "version": "1", "vulns": [{"id": each} for each in ids]} for name, ids in vulnerable.items()
    ]
    return json.dumps({"dependencies": [*packages, {"name": "unasked", "skip_reason": "not found"}]})


def test_packages_without_an_answer_are_not_called_clean() -> None:
    holes = audit.read_findings(report(a=["CVE-1"]))
    assert holes == audit.Findings(1, {"a 1": ["CVE-1"]}, ("unasked",))
    nothing, clean = audit.Findings(0, {}, ("a",)), audit.Findings(1, {}, ())
    assert [audit.judge(*each)[0] for each in ((holes, clean), (holes, holes), (holes, nothing))] == [0, 1, 2]


def test_a_service_that_does_not_know_a_known_hole_audits_nothing() -> None:
    status, verdict = audit.judge(audit.Findings(1, {}, ()), audit.Findings(100, {}, ()))
    assert (status, verdict[:11]) == (2, "not audited")


# Wheels


def test_the_package_has_its_data() -> None:
    files = set(wheels.package_files())
    assert {"swivel/py.typed", "swivel/data/sample-cells.xz", "swivel/explorer/page/index.html"} <= files
    assert "swivel/data/report.css" in files
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["swivel"]
    data = [file.removeprefix("swivel/") for file in files if not file.endswith(".py")]
    assert [file for file in data if not any(Path(file).match(pattern) for pattern in patterns)] == []


def test_an_interpreter_that_is_not_here_is_skipped_with_a_reason() -> None:
    assert wheels.try_python("no-such-python", Path("no.whl")) == {"skipped": "there is no such interpreter here"}
