"""Placement is a pure function: no slot is leased twice, no usable slot idles, the longest job starts first."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Waiting

kinds = st.sampled_from(["", "cpu", "cuda"])
jobs = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e18), kinds), max_size=12).map(
    lambda rows: [Waiting(f"{i:016x}", p, c, k, "") for i, (p, c, k) in enumerate(rows)]
)
free_slots = st.lists(st.sampled_from(["cpu", "cuda"]), max_size=8).map(
    lambda rows: [Slot(f"{kind}:{i}", kind) for i, kind in enumerate(rows)]
)


BOTH = [Slot("cpu:there", "cpu"), Slot("cuda:there", "cuda")]


def simulated(waiting, slots):
    """Return (begin, job) in the order of the starts, if a job takes as many hours as it costs."""
    waiting, free_at, started = list(waiting), [(0.0, f"cpu:{i}") for i in range(slots)], []
    all_slots = [Slot(name, "cpu") for _, name in free_at]
    while waiting:
        now, name = heapq.heappop(free_at)
        [(job, _)] = pairs(waiting, [slot for slot in all_slots if slot.name == name], all_slots)
        waiting.remove(job)
        heapq.heappush(free_at, (now + job.cost, name))
        started.append((now, job))
    return started


def pairs(waiting, free, slots):
    """Return pairs of a job and its slot, for jobs that take one slot each."""
    return [(job, *lease) for job, lease in place(waiting, free, slots)]


@given(jobs, free_slots)
def test_one_job_a_slot_and_no_slot_idle_that_could_work(waiting, free):
    placed = pairs(waiting, free, free + BOTH)
    assert len({job.run_id for job, _ in placed}) == len({slot.name for _, slot in placed}) == len(placed)
    assert {slot.name for _, slot in placed} <= {slot.name for slot in free}
    assert all(job.kind in ("", slot.kind) for job, slot in placed)
    left_jobs = [job for job in waiting if job not in [j for j, _ in placed]]
    left_slots = [slot for slot in free if slot not in [s for _, s in placed]]
    assert not any(job.kind in ("", slot.kind) for job in left_jobs for slot in left_slots)


@given(jobs, free_slots)
def test_nobody_is_passed_over_for_a_lower_turn(waiting, free):
    placed = {job.run_id for job, _ in pairs(waiting, free, free + BOTH)}
    for job in waiting:
        if job.run_id not in placed:
            behind = [o for o in waiting if (o.priority, o.cost) < (job.priority, job.cost) and o.kind == job.kind]
            assert not any(other.run_id in placed for other in behind)


@given(jobs, free_slots)
def test_a_kind_that_no_slot_has_binds_nobody(waiting, free):
    cpu = [slot for slot in free if slot.kind == "cpu"]
    assert len(pairs(waiting, cpu, cpu)) == min(len(cpu), len(waiting)), (
        "a run that began on a GPU must not wait for ever on a machine without"
    )


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 5))
def test_the_makespan_is_within_grahams_bound_and_the_longest_starts_first(lengths, slots):
    """No slot idles before the last job starts: end ≤ (sum − last) / m + last, and longest first makes `last` short."""
    waiting = [Waiting(f"{i:016x}", 0, float(length), "", "") for i, length in enumerate(lengths)]
    started = simulated(waiting, slots)
    end, last = max((begin + job.cost, job.cost) for begin, job in started)
    assert end <= (sum(lengths) - last) / slots + last + 1e-9
    assert [job.cost for _, job in started] == sorted(lengths, reverse=True)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 5))
def test_first_seeds_go_first_but_for_what_would_end_last(lengths, seeds, slots):
    """A later seed starts before a first one only if it is as long as a slot's share of all that waits."""
    waiting = [
        Waiting(f"{turn}-{row}", 0, float(length), "", "", turn=turn)
        for row, length in enumerate(lengths)
        for turn in range(seeds)
    ]
    started = [job for _, job in simulated(waiting, slots)]
    for place_, job in enumerate(started):
        left = started[place_:]
        early = job.turn > min(other.turn for other in left)
        assert not early or job.cost >= sum(other.cost for other in left) / slots - 1e-9


def test_the_last_seed_of_a_long_row_does_not_wait_for_its_turn():
    """Three seeds of a row of 40 h and of twenty rows of 5 h are placed on 8 slots: 52.5 h per slot."""
    waiting = [Waiting(f"big-{turn}", 0, 40.0, "", "", turn=turn) for turn in range(3)]
    waiting += [Waiting(f"{row}-{turn}", 0, 5.0, "", "", turn=turn) for row in range(20) for turn in range(3)]
    started = simulated(waiting, 8)
    assert max(begin + job.cost for begin, job in started) <= 55
    assert max(begin for begin, job in started if job.turn == 0) <= 15
    assert min(begin for begin, job in started if job.turn == 2 and job.cost == 5) >= 20


@given(st.integers(2, 9), st.integers(2, 4))
def test_first_seeds_go_first_where_costs_are_unknown(rows, seeds):
    waiting = [Waiting(f"{row}-{turn}", 0, 0.0, "", "", turn=turn) for row in range(rows) for turn in range(seeds)]
    assert [job.turn for _, job in simulated(waiting, 1)] == sorted(job.turn for job in waiting)
