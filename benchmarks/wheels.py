"""Wheel and sdist, built and tried in clean environments, one for each Python (`make wheel-test PYTHONS="..."`).

The sdist must build the wheel that the checkout builds, file for file, with every file of the package in it. Then each
Python gets a new environment outside the checkout, the wheel and the locked versions of what it needs, and must import
every public name, print help and run the demonstration. Pythons that are not here are named as skipped. A smoke run
only builds, from a copy of the checkout, because new environments need the network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT, keep, make_parser, parse_arguments, work_folder

sys.path.insert(0, str(ROOT / "tools"))
from lock import read_lock, read_torch, version_of

MEASURES = ("pyproject.toml", "MANIFEST.in", "requirements.lock", "constraints.txt")
BUILT_FROM = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "src")
NAMES_ALL = """
import pathlib, sys, swivel
from swivel.errors import MissingExtra
assert pathlib.Path(swivel.__file__).is_relative_to(sys.prefix), swivel.__file__
for name in swivel.__all__:
    try:
        getattr(swivel, name)
    except MissingExtra:  # what an extra is for
        pass
print(swivel.__version__)
"""
TEXT = "the cat sat on the mat . the dog sat on the log . a cat and a dog sat .\n" * 200


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--pythons", nargs="*", help="interpreters, by name or path; default: this one")
    parser.add_argument("--dist-only", action="store_true", help="build and compare, try nothing (`make dist`)")
    arguments = parse_arguments(parser, dist_only=True)

    wheel, files = build_both(copy_checkout(work_folder() / "checkout") if arguments.smoke else ROOT)
    tried: dict[str, Any] = {}
    for python in [] if arguments.dist_only else arguments.pythons or [sys.executable]:
        tried[python] = try_python(python, wheel)
        print(python, tried[python], flush=True)

    good = all(result.get("passed", True) for result in tried.values())
    built = {"wheel": wheel.name, "bytes": wheel.stat().st_size, "files": files}
    keep(arguments, {**built, "pythons": shorten(tried)}, name="dist" if arguments.dist_only else "wheels")
    sys.exit(0 if good else 1)


def shorten(tried: dict[str, Any]) -> dict[str, Any]:
    """Return the results without the machine's own paths: `python3.12`, or the version that the path held."""
    return {result.get("python") or Path(python).name: result for python, result in tried.items()}


def copy_checkout(target: Path) -> Path:
    """Copy what the package is built from, so that building leaves the checkout and its `dist` alone."""
    target.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, target)
    return target


def build_both(source: Path) -> tuple[Path, int]:
    """Build the sdist and from it the wheel; return the wheel and how many files it has, or raise if any is missing."""
    dist = source / "dist"
    for old in (dist, source / "build" / "lib"):  # setuptools takes what an earlier build left there, too
        shutil.rmtree(old, ignore_errors=True)

    build = [sys.executable, "-m", "build", "--no-isolation"]  # what builds is locked, as everything else
    run([*build, "--outdir", str(dist)], source)
    with tempfile.TemporaryDirectory() as folder:
        run([*build, "--wheel", "--outdir", folder], source)
        (direct,), (wheel,) = Path(folder).glob("*.whl"), dist.glob("*.whl")
        theirs, ours = read_wheel(wheel), read_wheel(direct)

    if theirs != ours:
        differing = sorted({name for name, _ in theirs.items() ^ ours.items()})
        raise AssertionError(f"the sdist builds another wheel than the checkout: {', '.join(differing)}")
    if missing := sorted(set(package_files(source)) - theirs.keys()):
        raise AssertionError(f"not in the wheel: {', '.join(missing)}")
    return wheel, len(theirs)


def package_files(source: Path = ROOT) -> Iterator[str]:
    """Yield every file of the package: code, the bundled matrix, the explorer's page."""
    package = source / "src" / "swivel"
    for file in package.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file.relative_to(package.parent).as_posix()


def read_wheel(wheel: Path) -> dict[str, str]:
    """Return the checksum of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def run(command: list[str], folder: Path) -> str:
    """Run a command away from the checkout's sources; return what it printed, or raise with the end of what it said."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def try_python(python: str, wheel: Path) -> dict[str, Any]:
    """Try the wheel with an interpreter, if there is such a one."""
    found = shutil.which(Path(python).expanduser())
    return try_wheel(found, wheel) if found else {"skipped": "there is no such interpreter here"}


def try_wheel(python: str, wheel: Path) -> dict[str, Any]:
    """Install the wheel in a new environment and use it; return the versions and what failed, if anything did."""
    result: dict[str, Any] = {"passed": False}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            result["python"] = run([python, "-c", "import platform; print(platform.python_version())"], place).strip()
            started = time.perf_counter()
            programs = install(python, wheel, place)
            result["install_seconds"] = round(time.perf_counter() - started)
            use(programs, place)
            result["passed"] = True
        except RuntimeError as error:
            result["error"] = str(error)
            print(error, file=sys.stderr)
    return result


def install(python: str, wheel: Path, place: Path) -> Path:
    """Make an environment with the wheel and nothing that it does not ask for; return where its programs are."""
    pins = {name: version_of(pin) for name, pin in read_lock().items()} | {"torch": read_torch()}
    constraints = place / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="utf-8")
    programs = place / "environment" / "bin"
    run([python, "-m", "venv", str(programs.parent)], place)
    run([str(programs / "pip"), "install", "--quiet", "--constraint", str(constraints), str(wheel)], place)
    run([str(programs / "pip"), "check"], place)
    return programs


def use(programs: Path, place: Path) -> None:
    """Every public name, the help, the demonstration, and the way from text to neighbors."""
    swivel = str(programs / "swivel")
    run([str(programs / "python"), "-c", NAMES_ALL], place)
    run([swivel, "--help"], place)
    run([swivel, "demo", "--output", "demo"], place)
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    run([swivel, "run", "text.txt", "--output", "work", "--min-count", "1", "--dim", "8"], place)
    run([swivel, "export", "work/vectors", "vectors.txt"], place)
    if "dog" not in (said := run([swivel, "nearest", "vectors.txt", "cat"], place)):
        raise RuntimeError(f"swivel nearest: 'dog' is not among the neighbors of 'cat': {said[-500:]}")


if __name__ == "__main__":
    main()
