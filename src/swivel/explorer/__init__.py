"""The explorer: a local web server and a page to search and compare vectors.

`queries` opens vectors and answers queries about them, `speller` finds spellings, `maps` computes maps, in the
background and for pictures, `app` serves the results and the page (in `page/`: plain HTML, CSS and JavaScript without a
build step), and `server` listens and checks every request. The explorer writes nothing and makes no network requests.
"""
