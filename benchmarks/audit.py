"""Known vulnerabilities of what is locked, asked of the advisory service by pip-audit (`make audit`).

First a version with a well-known hole is asked about: who does not know that one knows nothing, and a verdict would be
worthless. pip-audit by itself says "no known vulnerabilities" of packages that the service has not answered for.
Exit status: 0 where all were audited and none is vulnerable, 1 where one is, 2 where some or all could not be audited.
A smoke run asks nobody: it reads a report as pip-audit writes it, in which only the well-known hole is found.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, keep, make_parser, parse_arguments

sys.path.insert(0, str(ROOT / "tools"))
from lock import read_lock, read_torch, version_of

MEASURES = ("requirements.lock", "constraints.txt")
KNOWN_HOLE = {"jinja2": "2.11.2"}  # CVE-2020-28493
LIMIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Findings:
    """What the service said: how many packages it knows, which ones have holes, and whom it did not answer for."""

    audited: int
    vulnerable: dict[str, list[str]]
    skipped: tuple[str, ...]


def read_findings(report: str) -> Findings:
    """Return what pip-audit's JSON says; raises ValueError where it is none."""
    packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    answered = [each for each in packages if "vulns" in each]
    holes = {f"{each['name']} {each['version']}": [hole["id"] for hole in each["vulns"]] for each in answered}
    return Findings(
        audited=len(answered),
        vulnerable={name: found for name, found in holes.items() if found},
        skipped=tuple(each["name"] for each in packages if "vulns" not in each),
    )


def ask(pins: Mapping[str, str]) -> Findings:
    """Ask pip-audit about versions of packages; it installs and resolves nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json", "-r", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    try:
        return read_findings(done.stdout)
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        print(f"pip-audit: {reason}", file=sys.stderr)
        return Findings(0, {}, tuple(pins))


def ask_nobody(pins: Mapping[str, str]) -> Findings:
    """Return what pip-audit would say if only the well-known hole were known."""
    holes = {name: [{"id": "CVE-2020-28493"}] if pins == KNOWN_HOLE else [] for name in pins}
    packages = [{"name": name, "version": version, "vulns": holes[name]} for name, version in pins.items()]
    return read_findings(json.dumps({"dependencies": packages}))


def judge(known: Findings, findings: Findings) -> tuple[int, str]:
    """Return the exit status and the verdict in words."""
    if not known.vulnerable:
        return 2, "not audited: the advisory service cannot be reached, or does not know what is well known"
    if findings.vulnerable:
        return 1, f"vulnerable: {', '.join(findings.vulnerable)}"
    if findings.skipped:
        return 2, f"not audited: {', '.join(findings.skipped)}; the others are clean"
    return 0, "clean"


def main() -> None:
    arguments = parse_arguments(make_parser(__doc__))
    service = ask_nobody if arguments.smoke else ask

    pins = {name: version_of(pin) for name, pin in read_lock().items()} | {"torch": read_torch()}
    known = service(KNOWN_HOLE)
    findings = service(pins) if known.vulnerable else Findings(0, {}, tuple(pins))
    status, verdict = judge(known, findings)
    print(verdict, file=sys.stderr)
    figures = {"packages": len(pins), "audited": findings.audited, "vulnerable": findings.vulnerable}
    keep(arguments, {"verdict": verdict, **figures, "skipped": len(findings.skipped)})
    sys.exit(status)


if __name__ == "__main__":
    main()
