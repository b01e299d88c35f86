"""File faults for chaos.py: damaged lines among the events of running attempts, and locks on MLflow's database."""

import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter

from experiments.events.event_log import FILE, damaged_events
from experiments.events.history import History
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from experiments.tracking.database import make_database
from experiments.tracking.record import curve_name

DAMAGED = (
    b'{"kind":"metrics","metrics":{"loss":1.0},"step":3}',
    b'{"t":1,"kind":"metrics","metrics":{"loss":1.0},"step":9223372036854775808}',
    b'{"t":1,"kind":"failed","cls":"bug","message":"not so"}',
    b'{"t":1,"kind":"checkpoint","step":1000000,"path":"nowhere","crc":"00000000"}',
    b'{"t":1,"kind":"metrics","step":1' + b"0" * 5000 + b"}",
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"\xff\xfe rubbish \x00",
    b"x" * (5 << 20),
)
LOCK = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
time.sleep(float(sys.argv[2]))
"""


class Files:
    """Damages a store's files while a coordinator works on it, and records what it did."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self._store, self._chance = store, chance
        make_database(store.mlflow_db)  # so that it can be locked before the coordinator creates it
        self._locks: list[subprocess.Popen[bytes]] = []
        self.damaged: Counter[tuple[str, int]] = Counter()  # number of damaged lines by (run_id, attempt)

    def damage_a_line(self) -> bool:
        """Append a damaged line to the events of a running attempt in one write, as its child writes events.

        Return False if no attempt is running.
        """
        queue = Queue(self._store.queue_db)
        running = [(row.run_id, row.attempt) for row in queue.status() if row.state is State.RUNNING]
        queue.close()
        begun = [place for place in running if (self._store.attempt_folder(*place) / FILE).exists()]
        if not begun:
            return False
        place = self._chance.choice(begun)
        path = self._store.attempt_folder(*place) / FILE
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(file, self._chance.choice(DAMAGED) + b"\n")
        os.close(file)
        self.damaged[place] += 1
        return True

    def lock_mlflow(self) -> bool:
        """Lock MLflow's database for 1 to 12 seconds from another process."""
        seconds = self._chance.uniform(1.0, 12.0)
        self._locks.append(subprocess.Popen([sys.executable, "-c", LOCK, str(self._store.mlflow_db), str(seconds)]))
        return True

    def check(self) -> int:
        """Check that every damaged line is counted, and that MLflow has every point of every curve exactly once.

        Return the number of points.
        """
        for lock in self._locks:
            lock.wait()
        counted = {(run_id, attempt): line for run_id, attempt, line in damaged_events(self._store)}
        assert counted.keys() == self.damaged.keys()
        for place, number in self.damaged.items():
            assert counted[place].startswith("1 damaged line was" if number == 1 else f"{number} damaged lines were")
        database = sqlite3.connect(self._store.mlflow_db)
        points = 0
        for run_id in self._store.run_ids():
            told = [(curve_name(p.name), p.step, p.value) for p in History(self._store, run_id).read()]
            kept = database.execute(
                "SELECT m.key, m.step, m.value FROM metrics m "
                "JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'run_id' "
                "JOIN runs r ON r.run_uuid = m.run_uuid AND r.lifecycle_stage = 'active' WHERE t.value = ? AND "
                "(m.key LIKE 'train|_%' ESCAPE '|' OR m.key LIKE 'dev|_%' ESCAPE '|') AND m.key != 'train_wall_s'",
                (run_id,),
            ).fetchall()
            assert sorted(kept) == sorted(told), f"{run_id}: MLflow's curve is another"
            points += len(told)
        return points
