"""How a part of benchmarks.gpu ends: its exit code. Its last line of output says what was found, or why not."""

DONE, UNFINISHED, LEFT_OUT = 0, 3, 4
