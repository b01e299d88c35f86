"""Run the command in a process that tests can kill and watch. Its fork servers start with torch already imported.

python -m tests.system.shared_command WORD…
"""

import runpy

from tests import warm_torch

warm_torch.share()
runpy.run_module("ablations.cli.main", run_name="__main__", alter_sys=True)
