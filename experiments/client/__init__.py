"""Code that runs in the processes of a user's trainer.

`ablations_task` is the package that a trainer imports. `watch` records the modules that a trainer imports.
"""
