"""Code for the process of a user's trainer. The folder is on that process's path: it holds one package alone."""
