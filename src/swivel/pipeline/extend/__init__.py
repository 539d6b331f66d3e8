"""New words for trained vectors, from new text and without training: the stage behind `swivel extend`.

Receives a folder of vectors and text; hands on a folder of vectors that has the words of the first, as they are, and
after them the words that only the text has. The text is counted as the training's was, over all words together; then
`folding` gives each new word a row, with the trained columns held fixed, and its columns, with the trained rows held
fixed, and they are put together as the trained ones were. It trains nothing and changes no vector that was there.

Marginals: D and the sums of the trained rows and columns stay the training's; a new word's own are its counts with
trained words in the new text. Words that were added before take part in the windows, and in nothing else.

`model` opens what is extended, `words` counts, `stage` folds and writes.
"""

from swivel.pipeline.extend.stage import extend

__all__ = ["extend"]
