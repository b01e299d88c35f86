"""A folder that is first on the module search path of a run whose imports are watched.

Python therefore imports `sitecustomize` from this folder when it starts.
"""
