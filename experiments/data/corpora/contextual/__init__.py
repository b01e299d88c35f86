"""Version 2 of the built-in corpus: German words that other English words decide than the one that they translate."""
