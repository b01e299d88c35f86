"""Results become valid completely or not at all, by repeatable renames of evaluations and trainings."""

import pytest
import torch

from experiments.jobs.attempts.publish import leftover, missing, publish
from experiments.run_spec import EvaluationSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.training.checkpoint import save_weights
from tests.made_jobs import evaluation, made_job

RUN, E1, E2 = "a" * 16, "1" * 16, "2" * 16


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def job(*eval_ids, **more):
    return made_job(RUN, evaluations=tuple(map(evaluation, eval_ids)), **more)


def attempt(store, *eval_ids, trained=True, bleu=30.0, code="c1"):
    number, folder = store.new_attempt(RUN)
    if trained:
        write_json(folder / "result.json", {"run_id": RUN, "attempt": number, "code_digest": code})
    for eval_id in eval_ids:
        home = folder / "evaluations" / eval_id
        home.mkdir(parents=True)
        (home / "output.txt").write_text("ein Satz\n")
        write_json(home / "result.json", {"metrics": {"bleu": bleu}})
    return number


def test_what_is_whole_is_taken_over_and_doing_it_again_changes_nothing(store):
    number = attempt(store, E1)
    assert missing(store, job(E1)) == ["training", E1]
    assert publish(store, RUN, number).parts == ["training", E1]
    assert missing(store, job(E1)) == []
    assert store.result(RUN).attempt == number
    assert (store.evaluation_folder(RUN, E1) / "output.txt").read_text() == "ein Satz\n"
    assert publish(store, RUN, number).parts == []
    assert missing(store, job(E1, E2)) == [E2]


def test_a_disk_without_hard_links_is_written_anew(store, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    attempt(store)
    assert publish(store, RUN, 1).parts == ["training"]
    assert store.result(RUN).attempt == 1


def test_half_written_is_not_taken(store):
    number = attempt(store, E1)
    (store.attempt_folder(RUN, number) / "evaluations" / E1 / "result.json").write_text('{"metrics": {"bl')
    assert publish(store, RUN, number).parts == ["training"]
    (store.attempt_folder(RUN, attempt(store)) / "result.json").write_text("")
    assert publish(store, RUN, number + 1).parts == []
    assert store.result(RUN).attempt == number


def test_dying_between_the_two_renames_is_made_good(store):
    number = attempt(store, E1, E2)
    publish(store, RUN, number)
    store.evaluation_folder(RUN, E2).rename(store.attempt_folder(RUN, number) / "evaluations" / E2)
    assert publish(store, RUN, number).parts == [E2]


def test_the_first_evaluation_counts(store):
    publish(store, RUN, attempt(store, E1, bleu=30.0))
    assert publish(store, RUN, attempt(store, E1, trained=False, bleu=99.0)).parts == []
    assert store.evaluation(RUN, E1).metrics == {"bleu": 30.0}


def test_evaluations_alone_are_of_the_weights_there_are(store):
    publish(store, RUN, attempt(store))
    later = attempt(store, E1, trained=False)
    assert publish(store, RUN, later).parts == [E1]
    assert (store.evaluation(RUN, E1).attempt, store.evaluation(RUN, E1).weights_attempt) == (later, 1)


def test_evaluations_without_weights_are_left(store):
    assert publish(store, RUN, attempt(store, E1, trained=False)).parts == []


def test_an_attempt_that_comes_too_late_changes_nothing(store):
    late, won = attempt(store, E1, E2, bleu=1.0), attempt(store, E1, bleu=30.0)
    publish(store, RUN, won)
    assert publish(store, RUN, late).parts == []
    assert store.result(RUN).attempt == won
    assert missing(store, job(E2)) == [E2]


def test_training_anew_takes_the_old_scores_out_of_the_tables_and_keeps_them(store):
    old = attempt(store, E1, bleu=30.0)
    publish(store, RUN, old)
    assert missing(store, job(E1, rerun_after=old)) == ["training", E1]
    new = attempt(store, E1, bleu=31.0, code="c2")
    assert publish(store, RUN, new).parts == ["training", E1]
    assert store.evaluation(RUN, E1).metrics == {"bleu": 31.0}
    assert (store.attempt_folder(RUN, old) / "evaluations" / E1 / "output.txt").exists()
    assert publish(store, RUN, old).parts == []
    assert missing(store, job(E1, rerun_after=old)) == []


def test_a_finished_attempt_is_found_though_the_queue_is_lost(store):
    number = attempt(store, E1)
    assert leftover(store, job(E1, rerun_after=number)).parts == []
    assert leftover(store, job(E1)).parts == ["training", E1]
    assert missing(store, job(E1)) == []


@pytest.mark.parametrize("equal", [True, False])
def test_scores_are_those_of_a_training_that_came_to_the_same_weights(store, equal):
    """A run is trained again to get more checkpoints. Equal weights keep their scores; other weights replace them."""
    for value in (1.0, 1.0 if equal else 2.0):
        number = attempt(store)
        save_weights(store.attempt_folder(RUN, number) / "final", {"w": torch.full((3,), value)}, {"step": 5})
        if number == 1:
            scored = {"eval_id": E1, "set": "dev", "settings": {"beam": 4}, "inputs": {"set": "d"}}
            write_json(folder_of(store, E1) / "result.json", {**scored, "metrics": {"bleu": 30.0}})
        taken = publish(store, RUN, number)
    assert store.result(RUN).attempt == 2 and taken.parts == ["training"]
    assert taken.replaced == ([] if equal else [EvaluationSpec("dev", {"beam": 4}, {"set": "d"}, eval_id=E1)])
    assert missing(store, job(E1)) == ([] if equal else [E1])
    assert (store.evaluation(RUN, E1) is not None) == equal


def folder_of(store, eval_id):
    folder = store.attempt_folder(RUN, 1) / "evaluations" / eval_id
    folder.mkdir(parents=True)
    return folder


def test_to_renew_an_evaluation_is_to_replace_the_one_of_that_attempt(store):
    """Another one that was made meanwhile stays, and the replaced one lies with its own attempt."""
    publish(store, RUN, attempt(store, E1))
    asked = job(E1, renew={E1: 1})
    assert missing(store, asked) == [E1] and missing(store, job(E1)) == []
    for renews, parts, score in ((2, [], 30.0), (1, [E1], 31.0), (1, [], 31.0)):
        number = attempt(store, E1, trained=False, bleu=31.0 if parts else 99.0)
        path = store.attempt_folder(RUN, number) / "evaluations" / E1 / "result.json"
        write_json(path, {"metrics": {"bleu": 31.0 if parts else 99.0}, "renews": renews})
        assert publish(store, RUN, number).parts == parts
        assert store.evaluation(RUN, E1).metrics["bleu"] == score
    assert missing(store, asked) == []
    assert (store.attempt_folder(RUN, 1) / "evaluations" / E1 / "output.txt").exists()


def test_a_training_up_to_the_stale_one_is_missing_and_is_not_left_over(store):
    publish(store, RUN, attempt(store))
    assert missing(store, job()) == [] and missing(store, job(E1, rerun_after=1)) == ["training", E1]
    assert missing(store, job(E1, rerun_after=1, train=False)) == [E1]
    (store.run_folder(RUN) / "result.json").unlink()
    for rerun_after, parts in ((1, []), (0, ["training"])):
        assert leftover(store, job(rerun_after=rerun_after)).parts == parts


def test_an_evaluation_whose_record_is_damaged_gives_way_to_the_next(store):
    publish(store, RUN, attempt(store, E1))
    (store.evaluation_folder(RUN, E1) / "result.json").write_text("{")
    assert publish(store, RUN, attempt(store, E1, trained=False, bleu=32.0)).parts == [E1]
    assert store.evaluation(RUN, E1).metrics["bleu"] == 32.0
    (store.evaluation_folder(RUN, E1) / "result.json").write_text("{")
    again = publish(store, RUN, attempt(store))
    assert (again.parts, again.replaced) == (["training"], []), "nobody knows what it was of"
