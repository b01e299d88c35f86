"""Read the options of a user's script, what it prints and what it reads, from its syntax. Nothing of it is run."""
