"""Result folders: the only package that writes files.

A folder consists of parts and a manifest. Each part is written under a temporary name, flushed to disk and renamed. The
manifest is written last; it contains the size and checksum of each part, the settings and the fingerprints of the
inputs. A folder without a manifest is incomplete. `docs/file-formats.md` specifies the format.
"""
