"""Tests of how many runs share a GPU with `auto`: decisions, measured growth, and properties of whole tables."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.jobs.coordinator.decision import decide
from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.coordinator.sharing import Card, Share, Window, grow, growth, operations
from experiments.jobs.coordinator.throughput import LEAST, WINDOW_S, RunReport, Throughput
from experiments.jobs.devices import hardware, slots
from experiments.jobs.devices.hardware import Gpu
from experiments.jobs.devices.slots import parse_slots
from experiments.jobs.queue.job import Waiting
from experiments.records import CONTEXT_GB

STEPS = 1000
SMALL, MIDDLE, LARGE = 3e11, 2e12, 1.2e13  # operations of a step; of Table 3 in the profiles small and paper: the ends
H100 = 85.5


def run(number, gb=2.5, ops=SMALL, **more):
    return Waiting(f"{number:016x}", 0, ops * STEPS, "", "", gpu_memory_gb=gb, steps=STEPS, **more)


def runs(count, gb=2.5, ops=SMALL, first=0, **more):
    return [run(first + number, gb, ops, **more) for number in range(count)]


def card(index, gb, **more):
    return str(index), Gpu(f"GPU-{index}", gb, **more)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that gives the slots of `auto` on a machine with these cards."""

    def slots_of(*cards, cores=16, main_gb=256.0, visible=None, mps=False):
        monkeypatch.setattr(slots, "memory_gb", lambda: main_gb)
        monkeypatch.setattr(hardware, "_nvidia_smi", lambda: list(cards))
        monkeypatch.setattr(slots, "available_cores", lambda: cores)
        monkeypatch.setattr(slots, "mps_serves", lambda: mps)
        return parse_slots("auto", {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    return slots_of


def shared(job, slot):
    """Return the resources that a run takes of the GPU that it shares."""
    place = int(slot.name.partition("/")[2])
    return Share(place, slot.memory_gb + CONTEXT_GB, operations(job.cost, job.steps))


def settled(slots, jobs, total, rounds=9, **more):
    """The decisions after growth has ended. total: throughput of so many runs at once on a card; no run ends."""
    cards, waiting = {slot.name: Card(slot) for slot in slots}, list(jobs)
    for _ in range(rounds):
        free = [slot for slot in slots if not cards[slot.name].shares]
        for job, [slot] in place(waiting, free, slots, cards.values()):
            share = Share(
                int(slot.name.partition("/")[2]), slot.memory_gb + CONTEXT_GB, operations(job.cost, job.steps)
            )
            cards[slot.unit] = replace(cards[slot.unit], shares=(*cards[slot.unit].shares, share))
            waiting.remove(job)
        for name, one in cards.items():
            count = len(one.shares)
            if count:
                window = Window(count, {str(share.place): total(count) / count for share in one.shares})
                level = grow(one.level, window, one.limit(), one.slot.most)
                cards[name] = replace(one, level=level)
    # runs that ended are not replaced beyond the limit
    kept = [replace(one, shares=one.shares[: one.level.limit]) for one in cards.values() if one.level]
    return decide(slots, waiting, cards=kept, **more)


def grows_to(most):
    """Return a GPU's throughput as a function of its number of runs: it grows by 1.6 per doubling up to `most` runs."""

    def total(count):
        known = 1.0
        at = 1
        while at < min(count, most):
            at, known = at * 2, known * 1.6
        return known

    return total


@dataclass
class Case:
    """A machine with what waits; `expected` runs at once on each card, and what the sentence says."""

    cards: list
    jobs: list
    expected: list
    says: str
    options: dict = field(default_factory=dict)  # of the machine
    total: object = None  # measured throughput by runs at once; None: at the start
    asked: dict = field(default_factory=dict)


CASES = {
    "80 GB, small runs, at the start": Case([card(0, H100)], runs(20), [4], "fills at most 4% of the GPU"),
    "80 GB, small runs, as the H100": Case(
        [card(0, H100)], runs(20), [8], "16 at once gave 1.04 × the throughput of 8",
        total=lambda n: {4: 530, 8: 844, 16: 880}[n],
    ),
    "80 GB, growth stops at 4": Case(
        [card(0, H100)], runs(20), [4], "8 at once gave 1.00 × the throughput of 4", total=grows_to(4)
    ),
    "80 GB, growth stops at 2": Case(
        [card(0, H100)], runs(20, ops=MIDDLE), [2], "4 at once gave 1.00 × the throughput of 2", total=grows_to(2)
    ),
    "80 GB, growth never stops": Case(
        [card(0, H100)], runs(30), [16], "are enough for 16 runs", total=grows_to(99)
    ),
    "80 GB, large runs": Case([card(0, H100)], runs(3, 9.0, LARGE), [1], "1.2e+13 operations, which fill the GPU"),
    "80 GB, runs of half a card": Case([card(0, H100)], runs(3, 9.0, 6e12), [1], "fill 70% of the GPU"),
    "24 GB, memory short at 3": Case([card(0, 24.0)], runs(9, 5.0), [3], "GB are reserved"),
    "16 GB, memory short at 2": Case([card(0, 16.0)], runs(9, 5.0, 1e11), [2], "not enough memory for another run"),
    "8 GB, runs of 5 GB": Case([card(0, 8.0)], runs(9, 5.0, 1e10), [1], "not enough memory for another run"),
    "8 GB, runs of 7 GB": Case([card(0, 8.0)], runs(9, 7.0, 1e10), [1], "9.3 GB, more than the 7.2 GB"),
    "40 GB, unknown load": Case([card(0, 42.5)], runs(9, 3.0, 0.0), [1], "the load of a run is unknown"),
    "40 GB, unknown load, growth stops at 4": Case(
        [card(0, 42.5)], runs(9, 3.0, 0.0), [4], "8 at once gave 1.00 × the throughput of 4", total=grows_to(4)
    ),
    "80 GB, unknown memory": Case([card(0, H100)], runs(3, 0.0), [1], "the memory of the run is unknown"),
    "two cards, three small runs": Case([card(0, H100), card(1, H100)], runs(3), [2, 1], "no other run waits"),
    "eight cards, 20 small runs": Case(
        [card(index, H100) for index in range(8)], runs(20), [3] * 4 + [2] * 4, "no other run waits",
        {"cores": 64},
    ),
    "8 and 80 GB, small runs and one of 20 GB": Case(
        [card(0, 8.0), card(1, H100)], [run(99, 20.0, 2 * SMALL), *runs(9, 2.5, 1e10)], [1, 4], "not enough memory"
    ),
    "80 GB, one large run before small ones": Case(
        [card(0, H100)], [run(99, 9.0, LARGE), *runs(5)], [1], "which fill the GPU; 5 other runs can share it"
    ),
    "two cards, one large run before small ones": Case(
        [card(0, H100), card(1, H100)], [run(99, 9.0, LARGE), *runs(5)], [1, 4], "fill the GPU"
    ),
    "two cards, others use the first": Case(
        [card(0, H100), card(1, H100)], runs(20), [0, 4], "not used, because other programs use it: process 4711, "
            "30.0 GB",
        asked={"left_alone": {"cuda:0": "process 4711, 30.0 GB"}},
    ),
    "80 GB, one run failed out of memory": Case(
        [card(0, H100)], [*runs(3), replace(run(9, ops=SMALL / 2), alone=True)], [3], "1 other run gets the GPU alone"
    ),
    "80 GB, an MPS daemon runs": Case(
        [card(0, H100)], runs(20), [4], "NVIDIA's MPS serves them", {"mps": True}, asked={"mps": True}
    ),
    "exclusive mode without MPS": Case([card(0, H100, exclusive=True)], runs(9), [1], "no MPS daemon runs"),
    "exclusive mode with MPS": Case([card(0, H100, exclusive=True)], runs(9), [4], "4% of the GPU", {"mps": True}),
    "a card that CUDA_VISIBLE_DEVICES hides": Case(
        [card(0, H100), card(1, 24.0)], runs(9, 5.0), [3], "of 21.6 GB", {"visible": "GPU-1"}
    ),
    "slices (MIG) of 10 GB": Case(
        [("0", Gpu("MIG-a", 10.0)), ("0", Gpu("MIG-b", 10.0))], runs(9, 2.5, 1e10), [2, 2], "not enough memory"
    ),
    "80 GB, two cores": Case([card(0, H100)], runs(9), [2], "are enough for 2 runs", {"cores": 2}),
    "two cards, two cores": Case([card(0, H100), card(1, H100)], runs(9), [1, 1], "enough for one run", {"cores": 2}),
    "80 GB, 16 GB of main memory": Case([card(0, H100)], runs(9), [3], "are enough for 3 runs", {"main_gb": 16.0}),
    "unknown memory of the card": Case([card(0, None)], runs(9), [1], "nvidia-smi does not report the memory of the "
        "GPU"),
    "two devices for each run": Case(
        [card(0, H100), card(1, H100)], runs(3, devices=2), [1, 1], "2 devices train the run"
    ),
    "80 GB, nothing waits": Case([card(0, H100)], [], [0], "no run waits"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_decisions_on_fake_cards(machine, name):
    case = CASES[name]
    found = machine(*case.cards, **case.options)
    if case.total:
        decisions = settled(found, case.jobs, case.total, **case.asked)
    else:
        decisions = decide(found, case.jobs, **case.asked)
    assert [decision.at_once for decision in decisions.values()] == case.expected
    assert any(case.says in decision.why for decision in decisions.values()), decisions


def test_on_processors_and_with_named_gpus_nothing_is_decided(machine, monkeypatch):
    monkeypatch.setattr(hardware, "_nvidia_smi", list)
    monkeypatch.setattr(slots, "available_cores", lambda: 2)
    assert decide(parse_slots("auto", {}), runs(4)) == {}
    machine(card(0, H100))
    for text in ("cuda:0", "cuda:*", "cuda:*x3"):
        assert decide(parse_slots(text, {}), runs(4)) == {}
    [limited] = parse_slots("auto@5GB", {})
    decision = decide([limited], runs(4))["cuda:0"]
    assert (decision.at_once, decision.why) == (1, "--devices limits the memory of a run")


class TestPlacement:
    def test_a_run_is_capped_at_what_it_has_reserved(self, machine):
        found = machine(card(0, H100))
        [(_, [slot])] = place([run(1, 4.0)], found, found, [Card(found[0])])
        assert (slot.name, slot.device, slot.memory_gb, slot.threads, slot.share) == ("cuda:0/0", "GPU-0", 5.0, 2, 0.25)

    def test_a_run_that_shares_takes_the_first_free_place(self, machine):
        found = machine(card(0, H100))
        shares = (Share(0, 4.0, SMALL), Share(2, 4.0, SMALL))
        [(_, [slot])] = place([run(1)], [], found, [Card(found[0], shares)])
        assert slot.name == "cuda:0/1"

    def test_a_large_run_stops_others_from_joining_until_the_card_is_empty(self, machine):
        found = machine(card(0, H100))
        shared = Card(found[0], (Share(0, 4.0, SMALL),))
        assert place([run(9, 9.0, LARGE), run(1)], [], found, [shared]) == []
        assert [job.run_id for job, _ in place([run(9, 9.0, LARGE), run(1)], found, found, [Card(found[0])])] == [
            run(9).run_id
        ]

    def test_smaller_runs_do_not_delay_one_that_lacks_memory(self, machine):
        found = machine(card(0, H100), card(1, H100))
        cards = [
            Card(found[0], tuple(Share(i, 10.0, SMALL) for i in range(3))),
            Card(found[1], (Share(0, 60.0, SMALL),)),
        ]
        placed = place([run(9, 40.0, SMALL), *runs(9)], [], found, cards)
        assert {slot.unit for _, [slot] in placed} == {"cuda:1"}, "cuda:0 has more of the memory that it lacks"
        fewer = replace(cards[0], shares=cards[0].shares[:2])
        placed = place([run(9, 40.0, SMALL), *runs(9)], [], found, [fewer, cards[1]])
        assert placed[0][0].run_id == run(9).run_id and placed[0][1][0].name == "cuda:0/2"

    def test_a_run_that_needs_a_larger_card_closes_no_smaller_one(self, machine):
        found = machine(card(0, 8.0), card(1, H100))
        cards = [Card(found[0], (Share(0, 2.0, 1e9),)), Card(found[1], tuple(Share(i, 4.0, SMALL) for i in range(4)))]
        placed = place([run(9, 20.0, SMALL), run(1, 2.5, 1e9)], [], found, cards)
        assert [(job.run_id, slot.name) for job, [slot] in placed] == [(run(1).run_id, "cuda:0/1")]

    def test_a_run_bound_to_processors_takes_no_gpu(self, machine):
        found = [*machine(card(0, H100)), *parse_slots("cpu:1", {})]
        placed = place([replace(run(1), kind="cpu")], found, found, [Card(found[0])])
        assert [slot.name for _, [slot] in placed] == ["cpu:0"]

    @given(st.data())
    def test_no_run_is_above_memory_and_none_waits_beside_an_empty_card(self, data):
        sizes = data.draw(st.lists(st.sampled_from([8.0, 16.0, 24.0, 42.5, H100]), min_size=1, max_size=3))
        cards = [Gpu(f"GPU-{index}", gb) for index, gb in enumerate(sizes)]
        found = [replace(slot, most=data.draw(st.integers(2, 16))) for slot in slots._auto(cards)]
        memory = st.sampled_from([0.0, 1.0, 3.0, 7.0, 20.0, 60.0, 200.0])
        loads = st.sampled_from([0.0, SMALL, MIDDLE, LARGE])
        drawn = data.draw(st.lists(st.tuples(memory, loads, st.booleans()), max_size=12))
        waiting = [run(number, gb, ops, alone=alone) for number, (gb, ops, alone) in enumerate(drawn)]
        levels, running, rounds = {}, {}, 0
        while waiting or running:
            cards, free = [], []
            for slot in found:
                mine = [(job, lease) for job, lease in running.values() if lease.unit == slot.unit]
                if all("/" in lease.name for _, lease in mine):
                    shares = tuple(shared(job, lease) for job, lease in mine)
                    cards.append(Card(slot, shares, levels.get(slot.name)))
                free += [slot] * (not mine)
            for job, [lease] in place(waiting, free, found, cards):
                running[job.run_id] = (job, lease)
                waiting.remove(job)
            for slot in found:
                mine = [(job, lease) for job, lease in running.values() if lease.unit == slot.unit]
                whole = [job for job, lease in mine if "/" not in lease.name]
                assert not whole or len(mine) == 1, "alone means alone"
                needed = sum(job.gpu_memory_gb + CONTEXT_GB for job, _ in mine)
                assert whole or needed <= slot.free_gb, "above memory"
                assert len({lease.name for _, lease in mine}) == len(mine)
                roomiest = max(other.room_gb for other in found)
                assert mine or not [j for j in waiting if min(j.gpu_memory_gb, roomiest) <= slot.room_gb], "starved"
                one = next((c for c in cards if c.slot is slot), None)
                if one and mine and not whole:
                    rates = {job.run_id: data.draw(st.sampled_from([0.5, 1.0, 2.0])) for job, _ in mine}
                    now = replace(one, shares=tuple(Share(0, 0.0, job.cost / STEPS) for job, _ in mine))
                    levels[slot.name] = grow(one.level, Window(len(mine), rates), now.limit(), slot.most)
            if running:
                running.pop(data.draw(st.sampled_from(sorted(running))))
            rounds += 1
            assert rounds <= 13, "every round ends one run"


class TestGrowth:
    def test_only_runs_of_both_windows_are_compared(self):
        before, after = Window(1, {"a": 100.0}), Window(2, {"a": 80.0, "b": 3.0})
        assert growth(before, after) == pytest.approx(1.6)
        assert growth(Window(2, {"a": 100.0, "b": 2.0}), Window(4, {"b": 1.5, "c": 9.0})) == pytest.approx(1.5)

    def test_other_runs_are_compared_by_their_tokens_but_not_by_steps(self):
        before, after = Window(2, {"a": 100.0, "b": 100.0}, True), Window(4, dict.fromkeys("cdef", 80.0), True)
        assert growth(before, after) == pytest.approx(1.6)
        assert growth(before, after._replace(in_tokens=False)) is None
        level = grow(grow(None, before, 2, 16), after._replace(in_tokens=False), 4, 16)
        assert (level.limit, level.settled) == (4, False), "not comparable: the number stays"

    def test_the_limit_doubles_with_ten_percent_and_returns_without(self):
        first = grow(None, Window(2, {"a": 100.0}), 2, 16)
        assert first.limit == 4
        assert grow(first, Window(4, {"a": 55.1}), 4, 16).limit == 8
        back = grow(first, Window(4, {"a": 54.9}), 4, 16)
        assert (back.limit, back.settled) == (2, True)
        assert grow(back, Window(2, {"a": 500.0}), 2, 16) is back

    def test_less_than_a_doubling_needs_less_growth(self):
        first = grow(None, Window(2, {"a": 100.0}), 2, 16)
        needed = 1.1**0.58496 * 2 / 3 * 100
        kept = grow(first, Window(3, {"a": needed + 0.1}), 4, 16)
        assert (kept.limit, kept.settled) == (4, False), "memory was short for a fourth run"
        assert grow(first, Window(3, {"a": needed - 0.1}), 4, 16).limit == 2

    def test_runs_that_end_prove_nothing(self):
        first = grow(None, Window(4, {"a": 100.0}), 4, 16)
        assert grow(first, Window(3, {"a": 1.0}), 8, 16) is first

    def test_the_processors_limit_it(self):
        assert grow(None, Window(4, {"a": 1.0}), 4, 6).limit == 6
        last = grow(grow(None, Window(4, {"a": 1.0}), 4, 6), Window(6, {"a": 0.9}), 6, 6)
        assert (last.limit, last.settled) == (6, True)


class Curves:
    """Runs that report a point every second of the window's clock."""

    def __init__(self):
        self.throughput, self.now, self.steps = Throughput(), 0.0, {}

    def go(self, seconds, rates, states=None, tokens=True):
        """Return the completed windows. rates: by run; states: of runs that do not train."""
        found = []
        for _ in range(seconds):
            self.now += 1
            readings = []
            for name, rate in rates.items():
                state = (states or {}).get(name, "training")
                if state == "training":
                    self.steps[name] = self.steps.get(name, 0) + rate
                point = (self.steps[name], self.now) if name in self.steps else None
                readings.append(RunReport(name, state, point, 10.0 * rate if tokens else None))
            if window := self.throughput.observe(self.now, readings):
                found.append(window)
        return found


class TestThroughput:
    def test_a_window_has_the_runs_own_tokens(self):
        [window] = Curves().go(int(WINDOW_S) + 1, {"a": 5, "b": 7})
        assert window == Window(2, {"a": 50.0, "b": 70.0}, True)

    def test_an_own_trainer_has_steps_per_second(self):
        [window] = Curves().go(int(WINDOW_S) + 2, {"a": 5}, tokens=False)
        assert window == Window(1, {"a": 5.0}, False)

    def test_a_run_that_starts_is_waited_for(self):
        curves = Curves()
        assert curves.go(100, {"a": 5, "b": 5}, {"b": "starting"}) == []
        [window] = curves.go(int(WINDOW_S) + 2, {"a": 3, "b": 3})
        assert window.rates["a"] == 30.0, "not the rate while it had the GPU alone"

    def test_another_number_of_runs_begins_another_window(self):
        curves = Curves()
        assert curves.go(int(WINDOW_S) - 2, {"a": 5, "b": 5}) == []
        assert curves.go(int(WINDOW_S) - 2, {"a": 5}) == []
        [window] = curves.go(3, {"a": 5})
        assert window.at_once == 1

    def test_a_successor_continues_the_window(self):
        curves = Curves()
        curves.go(int(WINDOW_S) - 5, {"a": 5, "b": 5})
        curves.go(4, {"a": 9, "c": 5}, {"c": "starting"})
        [window] = curves.go(10, {"a": 5, "c": 5})
        assert (window.at_once, window.rates) == (2, {"a": 50.0, "c": 50.0})

    def test_a_run_that_evaluates_counts_and_has_no_rate(self):
        [window] = Curves().go(int(WINDOW_S) + 1, {"a": 5, "b": 5}, {"b": "evaluating"})
        assert (window.at_once, set(window.rates)) == (2, {"a"})
        assert Curves().go(200, {"a": 5}, {"a": "evaluating"}) == []

    def test_few_points_are_waited_for(self):
        curves = Curves()
        for _ in range(LEAST):
            assert curves.go(1, {"a": 5}) == []
            curves.now += 60
        assert len(curves.go(1, {"a": 5})) == 1

    def test_a_pause_is_one_slow_point_and_no_slow_run(self):
        curves = Curves()
        curves.go(20, {"a": 5}, tokens=False)
        curves.now += 8  # an evaluation of the development set
        [window] = curves.go(20, {"a": 5}, tokens=False)
        assert window.rates == {"a": 5.0}

    def test_an_attempt_that_resumes_begins_anew(self):
        curves = Curves()
        curves.go(20, {"a": 25})
        curves.go(1, {})
        curves.steps["a"] = 0  # of its last checkpoint
        [window] = curves.go(int(WINDOW_S) + 3, {"a": 5})
        assert window.rates == {"a": 50.0}
