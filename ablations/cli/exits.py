"""The exit codes of `ablations`; of a run's child: experiments/records.py."""

DONE = 0
FAILED = 1  # a run failed, a verified table has changed, with --strict a gap in the table; or a bug of this program
MISTAKE = 2  # of the user's
INTERRUPTED = 128  # plus the number of the signal
