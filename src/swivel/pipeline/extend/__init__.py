"""Add vectors for the words of new text to trained vectors, without training: `swivel extend`.

The result has the trained words with unchanged vectors, followed by the new words. The new text is counted with the
settings of the training, over all words together. Then `training.fold_in` computes the row of each new word with the
trained columns held fixed, and its columns with the trained rows held fixed. Rows and columns are combined in the same
way as those of the trained words.

Marginals: the total count D and the sums of the trained rows and columns are those of the training. The sums of a new
word are its counts with trained words in the new text. Words that an earlier `extend` added occupy their positions in
the context windows but do not take part in the fold-in.

`model` opens the vectors, `count_words` counts the text, and `stage` computes and writes the result.
"""

from swivel.pipeline.extend.stage import extend

__all__ = ["extend"]
