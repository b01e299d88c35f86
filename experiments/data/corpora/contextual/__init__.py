"""Version 2 of the built-in corpus. A German word often depends on other English words than the word it translates."""
