"""The explorer: a local web server and a page to search and compare vectors.

`models` opens vectors, `queries` and `spelling` answer queries about them, `maps` computes maps in the background,
`app` serves the results and the page (in `page/`: plain HTML, CSS and JavaScript without a build step), and `security`
checks every request. The explorer writes nothing and makes no network requests.
"""

from swivel.explorer.security import is_loopback as is_loopback
from swivel.explorer.server import PORT as PORT
from swivel.explorer.server import check_extra as check_extra
from swivel.explorer.server import listen as listen
from swivel.explorer.server import name_url as name_url
from swivel.explorer.server import open_sets as open_sets
from swivel.explorer.server import serve as serve
