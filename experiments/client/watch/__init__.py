"""A folder on the path of a run whose code is a tree: Python imports `sitecustomize` from it first."""
