"""Reading and writing vectors in the formats of other tools, one module per family of formats.

`FORMATS` in `registry` maps the name of each format to its reader and writer.
"""

from swivel.vectors.formats.gensim import from_gensim as from_gensim
from swivel.vectors.formats.gensim import to_gensim as to_gensim
from swivel.vectors.formats.registry import FORMATS as FORMATS
from swivel.vectors.formats.registry import as_vectors as as_vectors
from swivel.vectors.formats.registry import export as export
from swivel.vectors.formats.registry import find_vectors as find_vectors
from swivel.vectors.formats.registry import load as load
from swivel.vectors.formats.registry import open_vectors as open_vectors
from swivel.vectors.formats.registry import source_of as source_of
from swivel.vectors.formats.word2vec import read_text as read_text
