"""A study's patterns read numbers, points of the curve and progress from a script's output."""

import math

import pytest

from experiments.command_words import parts_of_command
from experiments.dotted import flatten
from experiments.errors import Diverged
from experiments.identity import identity_of
from experiments.jobs.attempts.attempt_progress import AttemptProgress
from experiments.run_spec import TrainerSpec
from experiments.store.run_names import run_name
from experiments.tasks.load import load_task
from experiments.tasks.own.context import recorded
from experiments.tasks.own.patterns import Readings, check_number, check_pattern
from experiments.tasks.own.trainer_output import Printed

ACC = r"test_acc ([\d.]+)"


def reading(output, pattern=ACC, take="last", progress=""):
    """Read an output that arrives in blocks of three bytes, and return the values and events."""
    events = []
    found = Readings(
        [("test", "acc", pattern, take)], progress, lambda kind, **fields: events.append({"kind": kind, **fields})
    )
    printed, data = Printed(lambda point: None, found.line), output.encode()
    for at in range(0, len(data), 3):
        printed.take(data[at : at + 3])
    printed.take(b"", final=True)
    return found, events


@pytest.mark.parametrize(
    ("output", "take", "expected"),
    [
        ("test_acc 0.5\nother\ntest_acc 0.4\n", "last", 0.4),
        ("test_acc 0.5\nother\ntest_acc 0.4\n", "highest", 0.5),
        ("test_acc 0.5\nother\ntest_acc 0.4\n", "lowest", 0.4),
        ("  3%\rtest_acc 0.1\rtest_acc 0.7\r", "last", 0.7),  # a progress bar
        ("\x1b[1;32mtest_acc \x1b[0m0.25\x1b[K", "last", 0.25),
        ("\x1b]8;;file://x\x1b\\test_acc 1\x1b]8;;\x07", "last", 1.0),
        ("test_acc 0.93.\n", "last", 0.93),  # the end of a sentence
        ("[rank0]: test_acc 0.5\n[rank1]: test_acc 0.5\n", "last", 0.5),
        ("test_acc 1 test_acc 2", "last", 2.0),
        ("test_acc 1.5e-05,", "last", 1.5e-05),
        ("test_acc 1.5E-05, lr 2", "last", 1.5e-05),
        ("test_acc 1, 2", "last", 1.0),
        ("test_acc 1.234,0.6", "last", 1.234),
        ("test_acc 0.123,5", "last", 0.123),
        ("test_acc 0.5,0.6", "last", 0.5),  # a list: no number has a point before a comma with three digits
        ("test_acc nan\ntest_acc 0.5\ntest_acc NaN\n", "highest", 0.5),
        ("test_acc 0.9%", "last", 0.9),
        ("test_acc 12s", "last", 12.0),
        ("test_acc 3ms", "last", 3.0),
        ("test_acc 1.5GB", "last", 1.5),
        ("test_acc 5m3s", "last", 5.0),
        ("(test_acc 0.5)", "last", 0.5),
        ("test_acc 0.9, loss 0.1", "last", 0.9),
        ("test_acc 0.9 123", "last", 0.9),  # two columns: 0.9 123 is no number
        ("test_acc 93  100", "last", 93.0),
        ("test_acc 93 1000", "last", 93.0),
        ("test_acc 12: done", "last", 12.0),
        ("test_acc 12 / 15", "last", 12.0),
        ("test_acc 0.5\ntest_acc None\n", "highest", 0.5),
        ("test_acc None\ntest_acc 0.5\n", "last", 0.5),
    ],
)
def test_the_number_in_lines_of_any_kind(output, take, expected):
    found, _ = reading(output, take=take)
    assert found.each[0].value == expected and found.complete


@pytest.mark.parametrize(
    ("pattern", "printed", "took"),
    [
        (ACC, "0,042831", "took '0' of '0,042831', a part of a number"),
        (r"test_acc ([\d.,]+)", "0,042831", "took '0,042831', which can be read in two ways"),
        (r"test_acc (\S+)", "1,234", "took '1,234', which can be read in two ways"),
        (ACC, "1,234.5", "took '1' of '1,234.5', a part of a number"),
        (ACC, "1.234,5", "took '1.234' of '1.234,5', a part of a number"),
        (r"test_acc (\d+)", "93.2", "took '93' of '93.2', a part of a number"),
        (r"test_acc (\S+)", "3/10", "took '3/10', which is no number"),
        (ACC, "1.5k", "took '1.5' of '1.5k', a part of a number"),
        (ACC, "2M,", "took '2' of '2M', a part of a number"),
        (ACC, "12:30", "took '12' of '12:30', a part of a number"),
        (ACC, "3/4", "took '3' of '3/4', a part of a number"),
        (ACC, "1.5D-03", "took '1.5' of '1.5D-03', a part of a number"),
        (ACC, "1.5 x 10^-3", "took '1.5' of '1.5 x 10^-3', a part of a number"),
        (ACC, "1 234.5", "took '1' of '1 234.5', which can be one number or two"),
        (ACC, "12\u2009345", "which can be one number or two"),
    ],
)
def test_a_number_that_can_be_read_in_two_ways_is_none(pattern, printed, took):
    found, _ = reading(f"test_acc 0.5\ntest_acc {printed} \n", pattern)
    assert found.each[0].value is None and took in found.never(found.each[0])
    assert reading(f"test_acc {printed}\ntest_acc 7\n", pattern)[0].each[0].value == 7.0  # the last one counts
    assert reading(f"test_acc {printed}\ntest_acc 7\n", pattern, take="highest")[0].each[0].value is None


@pytest.mark.parametrize("pattern", [ACC, r"test_acc (\S+)"])
@pytest.mark.parametrize("word", ["None", "null", "N/A", "NA,"])
def test_the_number_before_a_last_none_is_not_used(pattern, word):
    found, _ = reading(f"test_acc 0.5\ntest_acc {word}\n", pattern)
    assert found.each[0].value is None and "which is no number" in found.never(found.each[0])


@pytest.mark.parametrize("pattern", [r"test_acc ([-+\d.e]+)", r"test_acc (\S+)", r"test_acc ([-−\d.]+)"])
def test_the_minus_sign_of_typography_is_a_minus(pattern):
    assert reading("test_acc 0.5\ntest_acc −0.25\n", pattern)[0].each[0].value == -0.25


def test_a_part_of_a_number_is_read_if_the_pattern_goes_on():
    assert reading("test_acc 45/50", r"test_acc (\d+)/")[0].each[0].value == 45.0
    found = Readings([("test", "acc", ACC, "last", "1234.5")], "", print)
    found.line("test_acc 93 100")
    assert found.each[0].value == 93.0


@pytest.mark.parametrize(
    ("number", "printed", "expected"),
    [
        ("1.234,5", "0,042831", 0.042831),
        ("1.234,5", "-1.234.567,5e-3", -1234.5675),
        ("1234,5", "1234,5", 1234.5),
        ("1,234.5", "12,345.5", 12345.5),
        ("1,234.5", "12345.5", 12345.5),
        ("1 234,5", "12\u202f345,5", 12345.5),
        ("1'234.5", "12\u2019345.5", 12345.5),
        ("1234.5", "12.5", 12.5),
        ("1.234,5", "NaN", math.nan),
    ],
)
def test_numbers_are_read_as_the_pattern_says_that_they_are_written(number, printed, expected):
    found = Readings([("test", "acc", r"test_acc ([^;]+);", "last", number)], "", print)
    found.line(f"test_acc {printed};")
    assert found.each[0].value == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("number", "printed"), [("1.234,5", "12.5"), ("1,234.5", "0,042831"), ("1234,5", "1.5"), ("1,234.5", "1,23")]
)
def test_a_number_that_is_written_in_another_way_is_none(number, printed):
    found = Readings([("test", "acc", r"test_acc (\S+)", "last", number)], "", print)
    found.line(f"test_acc {printed}")
    assert found.each[0].value is None and f"not written like number = {number!r}" in found.never(found.each[0])
    with pytest.raises(ValueError, match=r"expected one of 1234\.5"):
        check_number("12.3")


@pytest.mark.parametrize(
    ("pattern", "printed"),
    [(ACC, "nan"), (ACC, "-inf"), (r"test_acc (\S+)", "NaN,"), (r"(?:[(\]]|x)?test_acc (?P<value>[\d.]+)", "inf")],
)
def test_what_is_no_number_is_not_replaced_by_an_earlier_one(pattern, printed):
    found, _ = reading(f"test_acc 0.5\ntest_acc {printed}\n", pattern)
    assert not math.isfinite(found.each[0].value)
    with pytest.raises(Diverged, match=r"acc = -?(NaN|infinity)"):
        recorded({"acc": found.each[0].value}, "test", ["acc"])


def test_a_group_called_step_gives_a_curve_on_which_several_ranks_are_one():
    output = "epoch 1 acc 0.5\nepoch 1 acc 0.6\nepoch 2 acc 0.7\nepoch 2 acc 0.7\nepoch 3 acc nan\n"
    found, events = reading(output, r"epoch (?P<step>\d+) acc ([\d.]+)")
    points = [(event["step"], event["metrics"]["acc"]) for event in events]
    assert points[:2] == [(1, 0.5), (2, 0.7)] and points[2][0] == 3 and math.isnan(points[2][1])
    assert math.isnan(found.each[0].value)


def test_a_pattern_that_never_matched_is_named_with_the_last_lines():
    found, _ = reading("loading\naccuracy 0.5\ndone\n")
    said = found.never(found.each[0])
    assert not found.complete
    assert f"the pattern of acc, '{ACC}', matched nothing" in said
    assert "loading\n    accuracy 0.5\n    done" in said
    found, _ = reading("test_acc soon", r"test_acc (\w+)")
    assert "took 'soon', which is no number" in found.never(found.each[0])


@pytest.mark.parametrize(
    ("pattern", "needs", "said"),
    [
        ("acc ([", 1, "not a valid regular expression"),
        ("acc .*", 1, "too few groups"),
        (r"(?P<step>\d+) acc", 1, "too few groups"),
        (r"(?P<a>\d) (?P<b>\d)", 1, "Name the group of the number `value`"),
        (r"step (\d+)", 2, "too few groups"),
    ],
)
def test_a_pattern_that_can_find_nothing_is_refused(pattern, needs, said):
    with pytest.raises(ValueError, match=said):
        check_pattern(pattern, needs)


def test_progress_has_steps_and_time_left():
    _, events = reading("step 1/10\nstep 3/10 \x1b[0m\rstep 11/10\n", progress=r"step (\d+)/(\d+)")
    progress = AttemptProgress()
    progress.take({"kind": "started", "t": 100.0})
    for number, event in enumerate(events):
        progress.take({**event, "t": 101.0 + 4 * number})
    assert (progress.doing, progress.step, progress.total) == ("training", 3, 10)
    assert progress.left_s(None) == 14.0  # two steps in four seconds, seven are left


def test_nothing_that_a_study_says_of_its_command_names_a_run():
    def of(**said):
        trainer = TrainerSpec("train {lr}", **said)
        config = load_task("command").with_settings({"lr": 0.1}, trainer).config_type()
        return run_name(config, {}, trainer), dict(flatten(config))

    plain, written = of()
    assert written == {"task": "command", "seed": 1, "lr": 0.1}
    assert plain.run_id == identity_of("command", 1, {"command": "train {lr}"}, {})
    of_code = {"tree": "a" * 40, "base": "b" * 40, "lines": 3, "links": ("train.py",), "globs": ("*.yaml",)}
    for name, value in {"progress": r"(\d+)/(\d+)", "patterns": (("test", "acc", ACC, "last"),), **of_code}.items():
        assert of(**{name: value})[0] == plain, name


@pytest.mark.parametrize(
    ("command", "fixed", "passed"),
    [
        ("python train.py --lr {lr} --seed {seed}", "train.py --seed {seed}", {"lr": "--lr {lr}"}),
        ("../.venv/bin/python3.11 -m net  --lr={lr}", "-m net", {"lr": "--lr={lr}"}),
        ("net go m.lr={lr} {b:--b|--no-b} -o {folder}", "net go", {"lr": "m.lr={lr}", "b": "{b:--b|--no-b}"}),
        ("expr {a} - {b}", "expr {a} - {b}", {}),
        ("X=1 torchrun t.py --cfg {settings} --p {a} {b}", "X=1 torchrun t.py --cfg {settings} {b}", {"a": "--p {a}"}),
        ("a.sh --lr {lr} && b.sh --lr {lr}", "a.sh & & b.sh", {"lr": "--lr {lr} --lr {lr}"}),
    ],
)  # fmt: skip
def test_the_words_of_a_command_that_no_setting_changes(command, fixed, passed):
    assert parts_of_command(command) == (fixed, passed)
