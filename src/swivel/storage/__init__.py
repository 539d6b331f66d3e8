"""Result folders: the only package that writes files.

A folder consists of parts and a manifest. Each part is written under a temporary name, flushed to disk and renamed. The
manifest is written last; it contains the size and checksum of each part, the settings and the fingerprints of the
inputs. A folder without a manifest is incomplete. `docs/file-formats.md` specifies the format.
"""

from swivel.storage.checksums import digest_array
from swivel.storage.files import build_folder, create_file, create_pair, flush, place_folder, write_arrays, write_file
from swivel.storage.folder_writer import FolderWriter, create_folder
from swivel.storage.lock import FolderLock, hold_folder, sweep_folder
from swivel.storage.manifest import (
    MANIFEST,
    REMEDY,
    Folder,
    Manifest,
    describe_damage,
    fingerprint,
    open_array,
    open_folder,
    read_manifest,
    seal,
    unseal,
)
from swivel.storage.npy import ArrayAppender, create_array
from swivel.storage.temporary import remove_file, remove_tree, scratch_folder

__all__ = [
    "ArrayAppender",
    "Folder",
    "FolderLock",
    "FolderWriter",
    "MANIFEST",
    "Manifest",
    "REMEDY",
    "build_folder",
    "create_array",
    "create_file",
    "create_folder",
    "create_pair",
    "describe_damage",
    "digest_array",
    "fingerprint",
    "flush",
    "hold_folder",
    "open_array",
    "open_folder",
    "place_folder",
    "read_manifest",
    "remove_file",
    "remove_tree",
    "scratch_folder",
    "seal",
    "sweep_folder",
    "unseal",
    "write_arrays",
    "write_file",
]
