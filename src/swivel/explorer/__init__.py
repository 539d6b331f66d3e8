"""The explorer: a page, served on this machine, that shows vectors.

Receives paths of vectors; hands on a server for one user and their browser. `sets` opens vectors, `answers` and
`spelling` answer questions about them, `layout` and `maps` make maps in the background, `app` and `routes` serve them,
`guard` is what no request gets past, `files` the page itself (in `page/`: plain HTML, CSS and JavaScript, no build
step). It trains nothing, changes nothing but the maps in the user's cache, and asks nothing of the network.
"""

from swivel.explorer.security import Hosts
from swivel.explorer.server import PORT, check_extra, listen, name_url, open_exploration, serve

__all__ = ["PORT", "Hosts", "check_extra", "listen", "name_url", "open_exploration", "serve"]
