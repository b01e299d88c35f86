"""The exit codes of `ablations`; of a run's child: experiments/records.py."""

DONE = 0
# A run failed or was left in the queue by `drain`, a verified table has changed, a table has gaps under --strict, or
# this program has a bug.
FAILED = 1
MISTAKE = 2  # of the user's
INTERRUPTED = 128  # plus the number of the signal
