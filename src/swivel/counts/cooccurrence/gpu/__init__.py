"""Count co-occurrences on a GPU or another torch device, by sorting the keys of all pairs."""
