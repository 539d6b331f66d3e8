"""Swivel: text, or any table of co-occurrence counts, in; vectors out."""

from swivel._version import __version__

__all__ = ["__version__"]
