"""Exit codes of the benchmarks of benchmarks.gpu. The last line of their output is the result or the reason."""

DONE, FAILED, UNFINISHED, LEFT_OUT = 0, 1, 3, 4
