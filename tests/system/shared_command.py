"""The command as a process of its own to be killed and watched, whose fork servers begin with torch imported.

python -m tests.system.shared_command WORD…
"""

import runpy

from tests import warm_torch

warm_torch.share()
runpy.run_module("ablations.cli.main", run_name="__main__", alter_sys=True)
