"""Every reader that is fuzzed, by name."""

from __future__ import annotations

from importlib.util import find_spec

from fuzz import of_folders, of_formats, of_importers, of_text
from fuzz.guard import Target

ALL = [target for room in (of_text, of_importers, of_formats, of_folders) for target in room.TARGETS]
TARGETS: dict[str, Target] = {target.name: target for target in ALL if all(map(find_spec, target.needs))}
MISSING = [f"{target.name} (needs {', '.join(target.needs)})" for target in ALL if target.name not in TARGETS]
