"""The class of a real error determines what the coordinator does."""

import subprocess
import sys

import pytest

from experiments.records import FailureClass

# A compiled library is imported late, in a process that may have hardly more addresses than it uses.
LATE = """
import resource
from experiments.errors import failure_class

[now] = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize")]
resource.setrlimit(resource.RLIMIT_AS, (now + 2**18,) * 2)
try:
    import numpy
except ImportError as error:
    print(failure_class(error))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are limited on Linux")
@pytest.mark.process
def test_a_library_that_finds_no_room_is_no_bug() -> None:
    said = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert said.stdout.strip() == FailureClass.OUT_OF_MEMORY.value, said.stderr
