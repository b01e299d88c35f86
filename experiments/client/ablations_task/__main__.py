"""The program of a trainer's process; multiprocessing runs it again in the processes that it spawns."""

import sys

sys.path[:1] = [__file__.rpartition("ablations_task")[0]]  # in place of this file's folder

if __name__ in ("__main__", "__mp_main__"):
    from ablations_task.names import belong_to_the_user  # type: ignore[import-not-found]

    belong_to_the_user()
if __name__ == "__main__":
    from ablations_task.process import main  # type: ignore[import-not-found]

    main()
