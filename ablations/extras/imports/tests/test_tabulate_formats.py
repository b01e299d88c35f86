"""Files as spreadsheets, pandas, R, loggers and trackers write them: the right rows and means, or one sentence.

The right means are those of pandas over the numbers that stand there. No message names a file that nobody wrote.
"""

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas
import pytest
from typer.testing import CliRunner

from ablations.cli.main import app
from ablations.extras.imports.tests.tabulated import rows, tabulate, written
from experiments.errors import UserError

GRID = "lr,seed,acc\n0.1,1,80\n0.1,2,81\n0.2,1,84\n0.2,2,85\n"
MEANS = {"lr0.1": 80.5, "lr0.2": 84.5}
FRAME = pandas.read_csv(io.StringIO(GRID))

# Name → (bytes of the file, what is said besides the rows). Each holds the runs of GRID.
READ: dict[str, tuple[bytes, str]] = {
    "pandas to_csv": (FRAME.to_csv().encode(), "column 1, without a name: it numbers the lines"),
    "pandas, read and written again": (
        pandas.read_csv(io.StringIO(FRAME.to_csv())).to_csv(index=False).encode(),
        "column 1, Unnamed: 0: it numbers the lines",
    ),
    "R write.csv": (
        b'"","lr","seed","acc"\n"1",0.1,1,80\n"2",0.1,2,81\n"3",0.2,1,84\n"4",0.2,2,85\n', "numbers the lines",
    ),
    "R write.table": (
        b'"lr","seed","acc"\n"1",0.1,1,80\n"2",0.1,2,81\n"3",0.2,1,84\n"4",0.2,2,85\n', "numbers the lines",
    ),
    "Excel's separator": (("sep=;\n" + GRID.replace(",", ";")).encode(), ""),
    "Excel with a mark and CRLF": (b"\xef\xbb\xbf" + GRID.replace(",", ";").replace("\n", "\r\n").encode(), ""),
    "Excel's Unicode text": (GRID.replace(",", "\t").encode("utf-16"), ""),
    "a separator at each end": (GRID.replace("\n", ",\n").encode(), ""),
    "a separator behind each line": (b"lr,seed,acc\n" + GRID.partition("\n")[2].replace("\n", ",\n").encode(), ""),
    "comments": (("# by x\n" + GRID + "# end\n").encode(), "lines 1, 7: a comment (#)"),
    "empty lines": (GRID.replace("\n", "\n\n,,\n").encode(), ""),
    "quoted line breaks": (
        b'note,lr,seed,acc\n"a\nb",0.1,1,80\n"a\nb",0.1,2,81\n"a\nb",0.2,1,84\n"a\nb",0.2,2,85\n', "",
    ),
    "old Mac": (GRID.replace("\n", "\r").encode(), ""),
    "bars": (GRID.replace(",", "|").encode(), ""),
    "1 and 1.0": (GRID.replace(",1,", ",1.0,").encode(), ""),
    "0.1 and 0.10": (GRID.replace("0.1,2", "0.10,2").encode(), ""),
    "a measured time": (
        b"lr,seed,wall_s,host,acc\n0.1,1,12.1,a,80\n0.1,2,12.1,b,81\n0.2,1,14.2,c,84\n0.2,2,13.7,d,85\n",
        "wall_s, host: taken as facts",
    ),
    "a measured value of no known name": (
        b"lr,seed,utility,acc\n0.1,1,12.1,80\n0.1,2,12.2,81\n0.2,1,14.2,84\n0.2,2,13.7,85\n", "utility: taken as facts",
    ),
    "MLflow's page": (
        b"Start Time,Duration,Run ID,Status,lr,seed,acc\n"
        b"2026-01-01 10:00:00,2.1s,0123456789abcdef0123456789abcde0,FINISHED,0.1,1,80\n"
        b"2026-01-01 10:00:05,2.0s,0123456789abcdef0123456789abcde1,FINISHED,0.1,2,81\n"
        b"2026-01-01 10:00:09,2.3s,0123456789abcdef0123456789abcde2,FINISHED,0.2,1,84\n"
        b"2026-01-01 10:00:13,2.2s,0123456789abcdef0123456789abcde3,FINISHED,0.2,2,85\n",
        "Start Time, Duration, Run ID: taken as facts",
    ),
    "the epoch at which a run ended": (
        b"epoch,lr,seed,acc\n10,0.1,1,80\n12,0.1,2,81\n10,0.2,1,84\n10,0.2,2,85\n", "epoch: taken as facts",
    ),
    "no seeds": (b"lr,acc\n0.1,80\n0.1,81\n0.2,84\n0.2,85\n", "no column (--seed); runs of a row are repeats"),
    "no seeds, a measured time": (
        b"lr,wall_s,acc\n0.1,12.1,80\n0.1,11.9,81\n0.2,14.2,84\n0.2,15,85\n", "wall_s: taken as facts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_the_same_runs_in_every_form_are_the_same_table(case: str, tmp_path: Path) -> None:
    content, said = READ[case]
    file = written(tmp_path, content)
    assert {row["row"]: row["acc_test"] for row in rows(file)} == MEANS
    assert {row["row"]: row["settings"]["lr"] for row in rows(file)} == {"lr0.1": 0.1, "lr0.2": 0.2}
    assert said in tabulate(file)[1]


# Name → (file, words, what is said): one sentence, with the line and the column where there is one.
REFUSED: dict[str, tuple[bytes, tuple[str, ...], str]] = {
    "trainer_state.json": (b'{"log_history": [{"epoch": 1, "loss": 2}]}', (), "the file is JSON"),
    "a name twice": (b"lr,seed,acc,acc\n0.1,1,80,1\n", (), "line 1: the columns 3 and 4 are both called 'acc'"),
    "a column without a name": (b",seed,acc\na,1,80\nb,1,81\n", (), "line 1, column 1 has no name"),
    "a hole in the head": (b"lr,,acc\n0.1,x,80\n0.2,y,81\n", (), "line 1, column 2 has no name"),
    "no head": (b"0.1,1,80\n0.2,1,81\n", (), "line 1: expected names of columns, and found numbers alone"),
    "NumPy's head": (b"# lr,seed,acc\n0.1,1,80\n0.2,1,81\n", (), "numbers alone (line 1: a comment (#) is left out)"),
    "a comment or a run": (b"m,seed,acc\na,1,80\n#1,1,81\n", (), "line 3 begins with # and has as many cells"),
    "a head or a comment": (b"#m,seed,acc\na,1,80\nb,1,81\n", (), "line 1 begins with # and has as many cells"),
    "a decimal comma": (b"lr;seed;acc\n0.1;1;82,3\n0.2;1;81,7\n", (), "line 2, column 3: acc = '82,3' is not a number"),
    "one decimal comma": (b'lr,seed,acc\n0.1,1,"82,3"\n0.2,1,81\n', (), "a comma may be a decimal point"),
    "thousands": (b'lr,seed,loss\n0.1,1,"1,234.5"\n0.2,1,900\n', (), "without separators of thousands"),
    "per cent": (b"lr,seed,acc\n0.1,1,82.3%\n0.2,1,81%\n", (), "line 2, column 3: acc = '82.3%' is not a number"),
    "a deviation": (b"lr,seed,acc\n0.1,1,82.3 +- 0.2\n0.2,1,81\n", (), "a mean with a deviation is not a run"),
    "a unit": (b"lr,seed,latency\n0.1,1,12ms\n0.2,1,1.3s\n", (), "write the unit into the column's name"),
    "Latin-1": ("lr,seed,acc\n0.1,1,80\ngrün,1,81\n".encode("latin-1"), (), "line 3: the text is not UTF-8 (byte "
        "0xFC)"),
    "an open quote": (b'lr,seed,acc\n0.1,1,80\n"0.2,1,81\n', (), "line 3: unexpected end of data"),
    "a longer line": (b"lr,seed,acc\n0.1,1,80\n0.2,1,81,9\n", (), "line 3 has 4 cells, but the head has 3"),
    "Keras' CSVLogger": (
        b"epoch,accuracy,loss,val_accuracy,val_loss\n0,0.1,2.3,0.2,2.2\n1,0.3,1.9,0.4,1.8\n2,0.5,1.2,0.6,1.1\n", (),
        "the log of a training: line 2 and line 3 differ in epoch alone",
    ),
    "Lightning's CSVLogger": (
        b"epoch,step,train_loss,val_acc\n0,49,2.3,\n0,99,,0.2\n1,149,1.9,\n1,199,,0.4\n", (), "the log of a training",
    ),
    "a curve of every run": (
        b"lr,seed,epoch,acc\n0.1,1,1,50\n0.1,1,2,80\n0.2,1,1,60\n0.2,1,2,84\n", (), "the log of a training",
    ),
    "some rows without a name": (b"row,seed,acc\na,1,80\n,1,81\n", (), "line 3 has no row name"),
    "a long file's value": (b"row,seed,metric,value\na,1,acc,\"8,1\"\n", (), "line 2, column 4: value = '8,1'"),
    "nobody is left": (GRID.encode(), ("--exclude", "lr=0.1", "--exclude", "lr=0.2"), "--exclude excludes every run"),
    "nobody is meant": (GRID.encode(), ("--exclude", "Lr=0.1"), "Nearest names: lr"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_one_sentence_with_its_place(case: str, tmp_path: Path) -> None:
    content, words, said = REFUSED[case]
    with pytest.raises(UserError, match=re.escape(said)) as raised:
        tabulate(written(tmp_path, content), *words)
    assert "\n" not in str(raised.value) and "ablations-tabulate-" not in str(raised.value)


@pytest.mark.parametrize("gap", ["", "NA", "N/A", "nan", "NaN", "-", "–", "null", "None", "#N/A", "<NA>"])
def test_a_cell_that_says_not_available_is_a_gap(gap: str, tmp_path: Path) -> None:
    file = written(tmp_path, GRID.replace(",84\n", f",{gap}\n").encode())
    found = {row["row"]: row["acc_test"] for row in rows(file)}
    assert found == {"lr0.1": 80.5, "lr0.2": None}
    assert "acc is missing in 1 run of 4 (line 4)" in tabulate(file)[1]
    assert rows(file, "--exclude", "seed=1")[1]["acc_test"] == 85


def test_a_base_row_with_a_gap_is_said_and_can_be_provisional(tmp_path: Path) -> None:
    file = written(tmp_path, GRID.replace(",80\n", ",nan\n").encode())
    printed, said = tabulate(file, "--provisional", "--format", "markdown")
    assert "line 2 is of lr0.1, the row that changes are from" in said and "*81.00 (1/2)*" in printed


def test_a_gap_of_the_file_is_not_called_a_run_that_was_not_trained(tmp_path: Path) -> None:
    file = written(tmp_path, GRID.replace(",80\n", ",-\n").encode())
    printed, _ = tabulate(file, "--format", "markdown")
    assert "– (1/2, 1 not imported)" in printed and "not run" not in printed
    assert "acc: not imported for lr0.1: the source has no value there." in printed
    with pytest.raises(UserError, match=f"--write {tmp_path / 'no' / 'x.toml'}: the folder"):
        tabulate(file, "--write", tmp_path / "no" / "x.toml")


def test_a_setting_that_a_run_lacks_is_unset(tmp_path: Path) -> None:
    lines = ["opt,decay,ema,seed,acc", "adamw,0.01,True,1,81", "adamw,0.0,False,1,80", "lion,,,1,70"]
    found = {row["row"]: row["settings"] for row in rows(written(tmp_path, lines), "--base", "opt=lion")}
    assert [settings.get("decay") for settings in found.values()] == [None, 0.01, 0.0]
    assert [settings.get("ema") for settings in found.values()] == [None, True, False]
    line = next(x for x in tabulate(tmp_path / "runs.csv", "--format", "markdown")[0].splitlines() if "lion" in x)
    assert line.count("unset") == 2 and " 0.0 " not in line and " no " not in line


MIXED = {
    "types": ("depth,features,seed,acc", ["3,0.5", "10,sqrt", "None,0.5", "007,1e-4", "7,1e-4"]),
    "a column called task": ("task,model,seed,acc", ["sst2,a", "sst2,b", "rte,a", "rte,b"]),
    "names of the program": ("command,set,seed,acc", ["x,1", "y,2"]),
    "a group and its member": ("model,model.depth,seed,acc", ["a,1", "a,2", "b,1"]),
    "signs": ('"batch size (per GPU)",größe,seed,acc', ["1,x", "2,x", "2,y"]),
    "other groups": ("group,copy,seed,acc", ["A,1", "A,2", "B,1"]),
    "names that joined are one": ("a,b,seed,acc", ["x-y,z", "x,y-z", "-,-"]),
    "dots and underscores": (".x,_hidden,seed,acc", ["1,x", "2,x", "2,y"]),
    "names that differ in signs": ("lr$,lr_,seed,acc", ["1,2", "1,3", "2,3"]),
    "names of pydantic": ("model_config,copy,seed,acc", ["1,2", "1,3", "2,3"]),
    "many": (f"{','.join(f'hyperparameter_number_{i}' for i in range(12))},seed,acc",
             [",".join(str(i * j) for i in range(12)) for j in range(3)]),
    "TOML's signs": ('"a""b",c,seed,acc', ['"x""y\\",1', "],2", "'#',2"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXED)
def test_any_names_and_values_are_rows_and_are_imported(case: str, tmp_path: Path) -> None:
    """A row for each combination as written, in the table and after the import of the study that is written."""
    head, combinations = MIXED[case]
    lines = [f"{one},{seed},{70 + place + seed / 4}" for place, one in enumerate(combinations) for seed in (1, 2)]
    file, study = written(tmp_path, [head, *lines]), tmp_path / "t.toml"
    means = [70.375 + place for place in range(len(combinations))]
    assert [row["acc_test"] for row in rows(file, "--metric", "acc", "--write", study)] == means
    store = ["--store", str(tmp_path / "runs")]
    for name in (study, tmp_path / "new study.toml"):
        done = CliRunner().invoke(app, ["import", str(name), "--from", str(file), "--metric", "acc", *store])
        assert done.exit_code == 0, done.output
        report = CliRunner().invoke(app, ["report", str(name), *store, "--json"])
        assert [row["acc_test"] for row in json.loads(report.stdout)] == means, report.output


NAMES = [
    "Full model", "w/o attention", "attention", "+ attention", "- attention", "LoRA (r=8)", "α=0.1", "β=0.1", "基线",
    "去掉注意力", "50%_off & more #1 $x$ {a} \\b",
    "Full model with positional encodings and label smoothing everywhere",
    "Full model with positional encodings and label smoothing everywhere!",
]  # fmt: skip


@pytest.mark.parametrize("column", ["row", "method"])
def test_rows_have_the_users_names(column: str, tmp_path: Path) -> None:
    """Whatever their signs and length: the key is another text, and the name is printed."""
    file = written(tmp_path, [f"{column},seed,acc", *(f'"{name}",1,{80 + i}' for i, name in enumerate(NAMES))])
    assert [row["acc_test"] for row in rows(file)] == [80 + i for i in range(len(NAMES))]
    printed = tabulate(file, "--format", "html")[0] + tabulate(file, "--format", "csv")[0]
    assert not [name for name in NAMES if name.partition("&")[0] not in printed]
    store = ["--store", str(tmp_path / "runs")]
    for order in (1, -1):  # a row is found by its name, whatever the order of the lines
        lines = [f'"{name}",1,{80 + i}' for i, name in enumerate(NAMES)][::order]
        written(tmp_path, [f"{column},seed,acc", *lines])
        words = ["import", str(tmp_path / "s.toml"), "--from", str(file), "--metric", "acc", *store]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert order == 1 or f"{len(NAMES)} already there" in done.output


def test_a_metric_without_a_direction_has_no_best_and_says_how_to_declare_it(tmp_path: Path) -> None:
    lines = ["lr,seed,elbow", *(f"{lr},{seed},{lr * 10 + seed / 10}" for lr in (1, 2, 3) for seed in (1, 2, 3))]
    file, study = written(tmp_path, lines), tmp_path / "s.toml"
    printed, said = tabulate(file, "--metric", "elbow", "--write", study, "--format", "markdown")
    assert "**" not in printed.partition("\n")[2] and "--metric elbow:min (or :max)" in printed
    assert "elbow (unknown direction: write --metric elbow:min or elbow:max)" in said
    for way, best in (("min", "lr1"), ("max", "lr3")):
        found = rows(file, "--metric", f"elbow:{way}")
        assert [row["row"] for row in found if row["elbow_test_best"]] == [best]
    checks = ("lr2 is better than lr1 in elbow", "lr2 is within 99 of lr1 in elbow")
    study.write_text(study.read_text() + "".join(f'\n[[claim]]\ncheck = "{check}"\n' for check in checks))
    store = ["--store", str(tmp_path / "runs")]
    CliRunner().invoke(app, ["import", str(study), "--from", str(file), "--metric", "elbow", *store])
    report = CliRunner().invoke(app, ["report", str(study), *store, "--notes", "full"]).stdout
    assert "Here it cannot be checked: it is unknown whether lower or higher elbow is better" in report
    assert "Here it holds" in report


def events(folder: Path, scalars: dict[str, Any], settings: dict[str, Any] | None = None) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    if settings:
        writer.add_event(Event(summary=hparams_pb(settings)))
    for tag, value in scalars.items():
        writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])))
    writer.close()


@pytest.mark.tensorboard
def test_folders_of_one_run_are_one_run_of_tensorboard(tmp_path: Path) -> None:
    """add_hparams, add_scalars, train and validation of Keras; trials of one writer stay apart."""
    pytest.importorskip("tensorboard")
    for lr in (1, 2):
        for seed in (1, 2):
            place = tmp_path / "hparams" / f"lr{lr}-seed{seed}"
            events(place, {"acc": 50 + lr + seed, "hp_metric": -1})
            events(place / f"17000000{seed}.5", {"hparam/acc": 1}, {"lr": lr, "seed": seed})
            keras = tmp_path / "keras" / f"lr{lr}" / f"seed{seed}"
            events(keras / "train", {"epoch_loss": lr})
            events(keras / "validation", {"epoch_loss": lr + seed})
        trial = tmp_path / "trials"
        events(trial / f"17000000{lr}.5", {"hparam/acc": lr}, {"lr": lr})
        events(tmp_path / "scalars" / f"lr{lr}", {"acc": lr})
        events(tmp_path / "scalars" / f"lr{lr}" / "loss_all_train", {"loss/all": lr})
    found = {row["settings"]["lr"]: (row["acc_test"], row["n"]) for row in rows(f"tensorboard:{tmp_path / 'hparams'}")}
    assert found == {1: (52.5, 2), 2: (53.5, 2)}
    of_keras = rows(f"tensorboard:{tmp_path / 'keras'}")
    assert [(row["row"], row["epoch_loss_train"], row["epoch_loss_validation"], row["n"]) for row in of_keras] == [
        ("lr1", 1, 2.5, 2),
        ("lr2", 2, 3.5, 2),
    ]
    assert [row["acc_hparam"] for row in rows(f"tensorboard:{tmp_path / 'trials'}")] == [1, 2]
    scalars = rows(f"tensorboard:{tmp_path / 'scalars'}")
    assert [row["row"] for row in scalars] == ["lr1", "lr2"] and {"acc_test", "loss/all_train"} <= scalars[0].keys()


@pytest.mark.nightly
@pytest.mark.tensorboard
def test_a_flipped_bit_of_an_event_file_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    events(tmp_path / "a", {f"acc{i}": i for i in range(5)}, {"lr": 1})
    [file] = (tmp_path / "a").iterdir()
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), 37):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged: the record at byte") as raised:
            tabulate(f"tensorboard:{tmp_path}")
        assert str(file) in str(raised.value)
    file.write_bytes(content[:-3])
    assert "is cut off" in tabulate(f"tensorboard:{tmp_path}")[1]


@pytest.mark.nightly
@pytest.mark.wandb
def test_a_flipped_bit_of_an_offline_run_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    content = min((Path(__file__).parent / "exports" / "wandb").glob("*.wandb")).read_bytes()
    file = tmp_path / "run-1.wandb"
    file.write_bytes(content)
    before = rows(f"wandb:{tmp_path}")[0]["acc_test"]
    for bit in range(0, 8 * len(content), 331):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        try:
            assert rows(f"wandb:{tmp_path}")[0]["acc_test"] == before, bit
            raise AssertionError(bit)
        except UserError as error:
            assert "damaged" in str(error) or "cut off" in str(error)


def lm_eval(folder: Path, time: str, results: dict[str, Any], **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"results": results, "config": {"model": "hf", "model_args": f"pretrained={folder.name}"}, **more}
    (folder / f"results{time and f'_{time}'}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("name", "time"), [("acc", "1"), ("acc,none", ""), ("acc,none", "2025-01-01T00-00-00")])
def test_older_files_of_lm_eval_are_read(name: str, time: str, tmp_path: Path) -> None:
    for model, acc in (("a", 0.891), ("b", 0.8)):
        about = {name: acc, name.replace("acc", "acc_stderr"): 0.0099, "alias": "sciq"}
        lm_eval(tmp_path / model, time, {"sciq": about})
    found = rows(f"lm-eval:{tmp_path}")
    assert [row["acc_sciq"] for row in found] == [0.891, 0.8] and "acc_stderr_sciq" not in found[0]


def test_an_evaluation_that_was_repeated_counts_once_and_other_tasks_are_joined(tmp_path: Path) -> None:
    lm_eval(tmp_path / "a", "2025-01-01", {"sciq": {"acc,none": 0.5}, "piqa": {"acc,none": 0.9}})
    lm_eval(tmp_path / "a", "2025-01-02", {"sciq": {"acc,none": 0.6}})
    lm_eval(tmp_path / "b", "2025-01-01", {"sciq": {"acc,none": 0.7}, "piqa": {"acc,none": 0.8}})
    found = rows(f"lm-eval:{tmp_path}")
    assert [(row["acc_sciq"], row["acc_piqa"], row["n"]) for row in found] == [(0.6, 0.9, 1), (0.7, 0.8, 1)]
    said = tabulate(f"lm-eval:{tmp_path}")[1]
    assert "a/results_2025-01-01.json: sciq evaluated again, in results_2025-01-02.json" in said


def test_the_direction_that_a_source_declares_comes_first(tmp_path: Path) -> None:
    for model, value in (("a", 1.0), ("b", 2.0)):
        results = {"t": {"acc,none": value, "elbow,none": value}}
        lm_eval(tmp_path / model, "1", results, higher_is_better={"t": {"acc": False, "elbow": True}})
    assert "t/acc (lower is better), t/elbow (higher is better)" in tabulate(f"lm-eval:{tmp_path}")[1]


def test_a_wandb_export_without_names_is_read(tmp_path: Path) -> None:
    runs = [
        {"id": i, "name": None, "state": "finished", "config": {"lr": lr}, "summary": {"acc": acc, "_step": 3}}
        for i, (lr, acc) in enumerate([(0.1, 80), (0.2, 84)])
    ]
    runs.append({"id": "\ud800x", "name": "\ud800", "state": "crashed", "config": None, "summary": None})
    (tmp_path / "w.json").write_text(json.dumps(runs))
    assert [row["acc_test"] for row in rows(f"wandb:{tmp_path / 'w.json'}")] == [80, 84]
    assert "its status is crashed" in tabulate(f"wandb:{tmp_path / 'w.json'}")[1]
    for wrong, said in (("[1]", "entry 1 of its list is '1'"), ('[{"config": 7}]', "config is '7'")):
        (tmp_path / "w.json").write_text(wrong)
        with pytest.raises(UserError, match=said):
            tabulate(f"wandb:{tmp_path / 'w.json'}")
