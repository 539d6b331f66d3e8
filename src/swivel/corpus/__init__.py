"""Text to token ids: sources, tokenizers and vocabulary.

`encoded_corpus.encode_corpus` reads paths, globs, standard input or iterables and returns an `EncodedCorpus`. The
vocabulary is chosen from its counts, and `counts.cooccurrence` counts its ids.
"""
