"""Version 2 of the built-in corpus. A German word often depends on more English words than the one it translates."""
