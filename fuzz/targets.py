"""Every reader that is fuzzed, by name."""

from __future__ import annotations

from fuzz import of_folders, of_formats, of_importers, of_text
from fuzz.guard import Target

TARGETS: dict[str, Target] = {
    target.name: target for room in (of_text, of_importers, of_formats, of_folders) for target in room.TARGETS
}
