"""The licenses of what is installed with Swivel: docs/licenses.md (`make licenses`), from the packages' own words.

Receives the lock and the metadata of installed packages. A license that is no plain permissive one is named, with what
it means here (`NAMED`); one that is neither stops the writing. Packages of other systems than this one are left out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from lock import ROOT, read_lock, read_torch, version_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = ROOT / "docs" / "licenses.md"
OWN = "swivel-embeddings"
PERMISSIVE = frozenset(  # as SPDX has them
    [
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "HPND",
        "ISC",
        "LLVM-exception",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    ]
)
# What is not permissive, or only in part: why it may be here.
NAMED = {
    "certifi": "MPL-2.0 is for its own files, which stay as they are",
    "gensim": "LGPL: imported where its users have installed it, never copied or changed; not needed to train",
    "hypothesis": "MPL-2.0 is for its own files; a tool of the tests",
    "pathspec": "MPL-2.0 is for its own files; a tool of mypy's",
    "tqdm": "MPL-2.0 is for its own files, which stay as they are",
}
# What older metadata says, in the words of SPDX.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "UNKNOWN": "",
    "PSFL": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
SILENT = {"atheris": "Apache-2.0", "axe-playwright-python": "MIT"}  # say so in their license files only


@dataclass(frozen=True, slots=True)
class License:
    """A package of one version, and the license that it names."""

    name: str
    version: str
    license: str


def read_license(package: Distribution) -> str:
    """Return a package's license, as an expression of SPDX where it can be said so; "" where it names none."""
    metadata = package.metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    said = "".join(metadata.get_all("License") or ()).strip()
    said = SPDX.get(said, said)
    if re.fullmatch(r"[\w.+-]+( (AND|OR|WITH) [\w.+-]+)*", said):  # not the text of one
        return said
    classes = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if "License ::" in line]
    return " OR ".join(SPDX.get(each, each) for each in classes) or SILENT.get(canonicalize_name(package.name), "")


def is_permissive(license: str) -> bool:
    """Return whether every part of an expression is a permissive license; of alternatives one is enough.

    >>> is_permissive("MIT AND (Apache-2.0 OR GPL-3.0-only)"), is_permissive("MIT AND MPL-2.0"), is_permissive("")
    (True, False, False)
    """
    while license != (simpler := re.sub(r"\(([^()]*)\)", lambda part: "MIT" if _is_one(part[1]) else "no", license)):
        license = simpler
    return _is_one(license)


def _is_one(license: str) -> bool:
    """The same without brackets: OR binds least."""
    return any(PERMISSIVE.issuperset(re.split(" AND | WITH ", each)) for each in license.split(" OR "))


def walk(requirements: Iterable[str]) -> set[str]:
    """Return the names of all packages that requirements lead to here, from what is installed."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, asked = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": asked}):
            continue
        found.add(name)
        fresh = {(name, extra) for extra in ("", *requirement.extras)} - seen
        seen |= fresh
        waiting += [(Requirement(line), extra) for _, extra in fresh for line in distribution(name).requires or ()]
    return found - {OWN}


def read_groups() -> dict[str, set[str]]:
    """Return what is installed always (""), and what each extra adds; extras that only join others are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    always = walk(project["dependencies"])
    extras = project["optional-dependencies"].items()
    return {"": always} | {name: walk(lines) - always for name, lines in extras if not lines[0].startswith(OWN)}


def read_installed(names: Iterable[str]) -> Iterator[License]:
    """Yield the licenses of those packages that are installed in the version that is locked."""
    locked = {name: version_of(pin) for name, pin in read_lock().items()} | {"torch": read_torch()}
    for name in sorted(locked.keys() & set(names)):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if package.version.partition("+")[0] == locked[name]:  # builds of torch are 2.13.0+cpu and the like
            yield License(name, locked[name], read_license(package))


def applies_here(name: str) -> bool:
    """Return whether a locked package is for this system and Python at all."""
    marker = read_lock()[name].marker
    return marker is None or marker.evaluate()


def write_rows(licenses: Iterable[License], needed_by: dict[str, list[str]]) -> list[str]:
    """Return the rows of a table; raise ValueError for a license that is not permissive and not named."""
    rows = []
    for each in licenses:
        if not is_permissive(each.license) and each.name not in NAMED:
            raise ValueError(f"{each.name} {each.version}: license {each.license!r} is not permissive and not in NAMED")
        for_whom = ", ".join(needed_by.get(each.name, ()))
        rows.append(f"| {each.name} | {each.version} | {each.license} | {for_whom} |")
    return rows


def read_page(text: str) -> dict[str, License]:
    """Return what the page lists, by name.

    >>> read_page("| name | version | license | for |\\n| --- | --- | --- | --- |\\n| numpy | 2.4.6 | BSD |  |")
    {'numpy': License(name='numpy', version='2.4.6', license='BSD')}
    """
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: License(*row[:3]) for row in cells if len(row) >= 3 and row[0] not in ("---", "name")}


TOP = """# Licenses

Swivel is under the Apache License 2.0. This page, written by `make licenses` from the packages' own metadata, lists
what is installed with it, in the versions that the tests run with (`requirements.lock`), on Linux.

Where a license is not a plain permissive one, or has parts that are not:

{named}
- The build of torch that a plain requirement brings on Linux installs NVIDIA's CUDA libraries (`nvidia-*`, `cuda-*`),
  which are under NVIDIA's own terms. The CPU build brings none of them.
"""
HEADS = {
    "Always": "What `pip install` brings.",
    "With an extra": "What the extras for users add.",
    "For development": "What the dependency groups `docs` and `dev` add: nothing that Swivel itself imports.",
}


def write_page() -> str:
    """Return the page."""
    groups = read_groups()
    needed_by: dict[str, list[str]] = {}
    for extra in groups.keys() - {""}:
        for name in groups[extra]:
            needed_by.setdefault(name, []).append(extra)
    needed_by = {name: sorted(extras) for name, extras in needed_by.items()}
    rest = {name for name in read_lock() if applies_here(name)} - groups[""] - needed_by.keys()
    lines = [TOP.format(named="\n".join(f"- **{name}**: {why}." for name, why in NAMED.items()))]
    for (head, text), names in zip(HEADS.items(), (groups[""], needed_by, rest), strict=True):
        table = ["| name | version | license | for |", "| --- | --- | --- | --- |"]
        lines += [f"## {head}\n\n{text}\n", *table, *write_rows(read_installed(names), needed_by), ""]
    return "\n".join(lines)


def main() -> None:
    page = write_page()
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(read_page(page))} packages")


if __name__ == "__main__":
    main()
