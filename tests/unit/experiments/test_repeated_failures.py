"""Tests of the decision whether failures of two rows count as the same failure."""

import pytest

from experiments.jobs.coordinator.repeated_failures import LAST_LINES_FOLLOW, RepeatedFailures, cause_in_short
from experiments.jobs.queue.job import Member
from experiments.tasks.own.patterns import LAST_LINES
from tests.made_jobs import made_job

PLACE = """Traceback (most recent call last):
  File "/program/experiments/tasks/own/function.py", line 242, in evaluate
    raise UserError(next(iter(lacking.values())))
experiments.client.ablations_task.errors.UserError: """


def user_error(message):
    return {"cls": "user_error", "message": message, "traceback": PLACE + message}


class HeldTables:
    """Stands for the queue. Records why tables are held."""

    def __init__(self):
        self.reasons = []

    def hold_table(self, member, why):
        self.reasons.append(why)


def held(*failures):
    queue = HeldTables()
    seen = RepeatedFailures(queue)
    for number, failure in enumerate(failures):
        job = made_job(f"{number:016x}", "stub", {}, members=(Member("s", "p", "c", f"row{number}"),))
        seen.add(job, failure, failure["message"])
    return queue.reasons


def test_two_mistakes_that_are_raised_at_one_place_are_two_failures():
    nothing = "The pattern of acc matched nothing in the output. The last lines:\n    acc tensor(0.75)"
    part = "The pattern of acc took '1' of \"1'234.5\", a part of a number. The last lines:\n    acc 1'234.5"
    assert held(user_error(nothing), user_error(part)) == []
    [why] = held(user_error(nothing), user_error(part), user_error(nothing.replace("0.75", "0.5")))
    assert "same message (row0, row2: The pattern of acc matched nothing in the output). Correct" in why


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("lr is 0.1, at most 0.05", "lr is 1e-2, at most 0.05", True),
        ("/data/a/x.csv has no column y", "/data/b/x.csv has no column y", True),
        ("runs/a/x.csv is empty.\nthe log of a", "runs/b/x.csv is empty.\nthe log of b", True),
        ("x.csv has no column y", "x.csv has no column z", False),
        ("optimizer adam is unknown", "optimizer lion is unknown", False),
    ],
)
def test_messages_are_compared_without_numbers_paths_and_further_lines(one, other, same):
    assert bool(held(user_error(one), user_error(other))) is same


def test_a_traceback_of_the_users_code_is_compared_by_its_place():
    def bug(line, message):
        frame = f'  File "/mine/train.py", line {line}, in step\n    x()\nValueError: {message}\n'
        return {"cls": "bug", "message": message, "traceback": f"Traceback (most recent call last):\n{frame}"}

    [why] = held(bug(3, "size of a"), bug(3, "size of b"))
    assert "same traceback (row0, row1: ValueError at /mine/train.py:3 (step))" in why
    assert held(bug(3, "size"), bug(4, "size")) == []


def test_a_failure_without_traceback_is_compared_by_the_last_lines():
    assert cause_in_short({"cls": "user_error", "message": "exit code 1", "traceback": ""}, "a: b")[0] == "last lines"


def test_the_heading_of_the_log_is_the_one_that_messages_have():
    assert LAST_LINES_FOLLOW == LAST_LINES
