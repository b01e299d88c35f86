"""Find the options and printed metrics of a user's script in its syntax tree. Only the module `ask` runs the script."""
