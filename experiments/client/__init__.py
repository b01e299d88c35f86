"""What runs in the process of a user's trainer. It is on that process's path: it holds one package alone."""
