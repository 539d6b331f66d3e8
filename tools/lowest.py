"""Run the tests with the lowest versions that pyproject.toml allows: `make test-lowest`.

What pyproject.toml names has the lowest version with a wheel for the chosen Python. What those packages need is as new
as possible, and what only tests, checks or builds has its locked version. The environment stays in `build`.

    python tools/lowest.py PYTHON [ARGUMENTS OF PYTEST ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from lock import ROOT, read_lock, version_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

UV = Path(sys.executable).parent / "uv"
COMPILE = ("pip", "compile", "--no-config", "--quiet", "--resolution", "lowest-direct", "--annotation-style", "line")
WHEELS = ("--only-binary", ":all:")
# What the code or a library of an extra imports. Everything else in the groups `docs` and `dev` is a tool.
LIBRARIES = {"httpx", "model2vec", "pandas", "polars", "safetensors", "triton", "umap-learn"}
# Old packages use what is deprecated in newer ones, and some leave files open.
IGNORED_WARNINGS = ("DeprecationWarning", "PendingDeprecationWarning", "ResourceWarning")


def read_groups() -> dict[str, Requirement]:
    """Return what the dependency groups `docs` and `dev` ask for, by name."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    lines = [line for group in ("docs", "dev") for line in groups[group]]
    requirements = [Requirement(line) for line in lines if isinstance(line, str)]  # not {include-group = "docs"}
    return {canonicalize_name(each.name): each for each in requirements}


def pin_tools(groups: dict[str, Requirement]) -> list[str]:
    """Return `name==version` of each tool, as locked."""
    pins = read_lock()
    return [f"{name}=={version_of(pins[name])}" for name in sorted((groups.keys() & pins.keys()) - LIBRARIES)]


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the root of the repository; exit with its status if it fails."""
    if status := subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode:
        sys.exit(status)


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def install(interpreter: str, folder: Path) -> None:
    """Make an environment with the lowest versions in a folder, or change the one that is there."""
    run(interpreter, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"

    groups = read_groups()
    tools = write_lines(folder / "tools.txt", *pin_tools(groups))
    # A build of torch for CUDA asks for one version of Triton, which may be older than the kernels need.
    overrides = write_lines(folder / "overrides.txt", str(groups["triton"]))
    lowest = write_lines(folder / "lowest.txt")  # Otherwise uv keeps the versions of the last time.
    inputs = ("--constraint", tools, "--override", overrides, "--extra", "all", "--group", "dev", "pyproject.toml")
    run(UV, *COMPILE, *WHEELS, "--python", python, *inputs, "--output-file", lowest)

    run(UV, "pip", "sync", "--no-config", "--quiet", *WHEELS, "--python", python, lowest)
    own = ("--no-deps", "--no-build-isolation", "--editable", ".")
    run(UV, "pip", "install", "--no-config", "--quiet", "--python", python, *own)


def main() -> None:
    interpreter, *arguments = sys.argv[1:]
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    version = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    folder = ROOT / "build" / f"lowest-{version}"
    install(interpreter, folder)

    ignored = [f"-Wignore::{warning}" for warning in IGNORED_WARNINGS]
    # Kernels that another numba has compiled do not fit.
    variables = {"NUMBA_CACHE_DIR": str(folder / "numba"), "OMP_WAIT_POLICY": "passive"}
    run(folder / "bin" / "pytest", "--max-worker-restart=0", *ignored, *arguments, **variables)


if __name__ == "__main__":
    main()
