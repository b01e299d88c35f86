"""How a benchmark of benchmarks.gpu ends: its exit code. Its last line of output says what was found, or why not."""

DONE, FAILED, UNFINISHED, LEFT_OUT = 0, 1, 3, 4
