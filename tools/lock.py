"""The lock: every package that the tests run with, of one version, with the hashes of all its files.

`make lock` asks uv for it, from pyproject.toml, for every Python and system at once; versions stay what they were
unless `--upgrade` asks for new ones. Left out are torch and the CUDA packages that some of its builds bring:
`constraints.txt` says why. What reads the lock (licenses, audit, tests) reads it through `read_lock`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK, CONSTRAINTS = ROOT / "requirements.lock", ROOT / "constraints.txt"
APART = re.compile(r"torch|(cuda|nvidia)-.*")
# The lowest that all of them run on: some say 3.11.5. `fewest` is one version of each for all Pythons.
PYTHON = "3.11.5"
COMPILE = ("pip", "compile", "--no-config", "--quiet", "--universal", "--fork-strategy", "fewest", "--generate-hashes")
WANTED = ("--extra", "all", "--group", "dev", "pyproject.toml")
INPUTS = ("--python-version", PYTHON, "--constraint", CONSTRAINTS.name, *WANTED)
HEADER = ("--custom-compile-command", "make lock")


def split_blocks(text: str) -> list[str]:
    """Return the lock in blocks: the header, then each package with its hashes and who asked for it.

    >>> split_blocks("# head\\na==1\\n    # via b\\nb==2\\n")
    ['# head\\n', 'a==1\\n    # via b\\n', 'b==2\\n']
    """
    return re.findall(r"^\S.*\n(?:[ #].*\n)*", text, re.M)


def read_block(block: str) -> Requirement:
    """Return what a block requires: `name==version`, and where."""
    return Requirement(block.partition("\n")[0].removesuffix("\\"))


def read_lock(text: str | None = None) -> dict[str, Requirement]:
    """Return what is locked, by name."""
    blocks = split_blocks(LOCK.read_text(encoding="utf-8") if text is None else text)
    found = [read_block(block) for block in blocks if not block.startswith("#")]
    return {canonicalize_name(each.name): each for each in found}


def version_of(requirement: Requirement) -> str:
    """Return the one version that a pin allows."""
    (pin,) = requirement.specifier
    return pin.version


def read_torch() -> str:
    """Return the version of torch that goes with the lock."""
    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    (pin,) = map(Requirement, lines)
    return version_of(pin)


def leave_apart(text: str) -> str:
    """Return a lock without torch and what only some of its builds need.

    >>> leave_apart("# head\\nnumpy==2\\nnvidia-nccl-cu13==1\\ntorch==2\\n")
    '# head\\nnumpy==2\\n'
    """
    kept = [block for block in split_blocks(text) if block[0] == "#" or not APART.fullmatch(read_block(block).name)]
    return "".join(kept)


def main() -> None:
    new = LOCK.with_suffix(".new")
    new.write_text(LOCK.read_text(encoding="utf-8") if LOCK.exists() else "", encoding="utf-8")  # uv keeps its versions
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, *COMPILE, *INPUTS, *HEADER, "--output-file", new.name, *sys.argv[1:]]
    try:
        if status := subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
            sys.exit(status)
        LOCK.write_text(leave_apart(new.read_text(encoding="utf-8")), encoding="utf-8")
    finally:
        new.unlink()
    print(f"{LOCK.name}: {len(read_lock())} packages")


if __name__ == "__main__":
    main()
