"""The explorer: a local web server and a page to search and compare vectors.

`models` opens vectors, `queries` and `spelling` answer queries about them, `maps` computes maps in the background,
`app` serves the results and the page (in `page/`: plain HTML, CSS and JavaScript without a build step), and `security`
checks every request. The explorer writes only to the map cache of the user and makes no network requests.
"""

from swivel.explorer.security import is_loopback
from swivel.explorer.server import PORT, check_extra, listen, name_url, open_exploration, serve

__all__ = ["PORT", "check_extra", "is_loopback", "listen", "name_url", "open_exploration", "serve"]
