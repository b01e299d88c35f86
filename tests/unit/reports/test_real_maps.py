"""A row that is decoded with a vocabulary map: its identity, its notes, and its run in `translate` and `export`."""

import shutil
from pathlib import Path

import pytest

from ablations.service.choose_run import Named, Trained, find_trained, with_map
from ablations.service.selected import Selectors
from experiments.config import DeviceSpec
from experiments.data.encoding.vocabulary_map import read_map
from experiments.errors import UserError
from experiments.evaluation.decode.beam import SearchSettings
from experiments.evaluation.trained.export import export
from experiments.evaluation.trained.translator import Translator
from experiments.store.layout import Store
from experiments.tasks.sequence.lines import read_lines
from reports.render.setup import paragraph
from reports.results.table import Row
from tests.unit.reports.real import Made, said

SEARCH = SearchSettings(2, 0.6, 3)  # of the tables; a run's record has that of the row which trained it
MAPPED = """
[[variation]]
key = "mapped"
set = {evaluation.vocabulary_map = 1}

[[variation]]
key = "mapped-pair"
ensemble = {of = "base", seeds = [1, 2]}
set = {evaluation.vocabulary_map = 1}
"""


@pytest.fixture(scope="module")
def made(small, tmp_path_factory):
    copy = small["ensembles"].copied(tmp_path_factory.mktemp("maps") / "other")
    copy.study.write_text(copy.study.read_text() + MAPPED)
    return copy.run(rows="mapped,mapped-pair")


def outputs(made: Made, row: Row) -> list[str]:
    (outcome, *_) = row.outcomes
    folder = Store.open(made.store).evaluation_folder(outcome.run.run_id, outcome.scored["dev"].eval_id)
    return read_lines(folder / "translations.txt")


def found(made: Made) -> Trained:
    run_id = made.rows(rows="base")["base"].outcomes[0].run.run_id
    return find_trained(Named(run=run_id), Selectors(store=made.store))


def test_it_is_an_evaluation_of_its_own_and_named(small, made):
    before, rows = small["ensembles"].rows(), made.rows()
    (base, *_), (mapped, *_) = rows["base"].outcomes, rows["mapped"].outcomes
    assert base.run.run_id == mapped.run.run_id  # trained once
    assert [s.eval_id for s in base.scored.values()] == [s.eval_id for s in before["base"].outcomes[0].scored.values()]
    assert not {s.eval_id for s in base.scored.values()} & {s.eval_id for s in mapped.scored.values()}
    (note,) = said(
        made.table(), "Decoded with a vocabulary map", "the 1 most probable target piece of each source piece"
    )
    assert ": mapped, mapped-pair." in note
    assert not said(made.table(rows="base"), "vocabulary map")
    assert "vocabulary_map 1" in paragraph(made.table(rows="mapped"))
    assert "vocabulary_map" not in paragraph(made.table(rows="base"))
    assert rows["base"].measures["ppl"].mean == rows["mapped"].measures["ppl"].mean  # measured once, over all pieces
    assert len(list(made.store.glob("corpora/*/vocabulary-map-1"))) == 1


def test_translate_gives_what_the_table_was_made_of(made, tmp_path):
    trained, store = found(made), Store.open(made.store)
    (learnt,) = made.store.glob("corpora/*/vocabulary-map-1")
    sources = read_lines(next(learnt.parent.glob("sets/dev-*/source.txt")))
    assert with_map(trained, store, None) == (trained.config, None)
    config, folder = with_map(trained, store, 1)
    assert folder is not None
    translator = Translator.of_run(config, trained.attempt, DeviceSpec(), vocabulary_map=read_map(folder, 1))
    mapped = outputs(made, made.rows()["mapped"])
    assert translator.translate(sources, SEARCH) == mapped

    about = {"run_id": trained.run_id, "choice": "last", "facts": {}}
    export(config, trained.attempt, tmp_path / "model", vocabulary_map=folder, **about)
    shutil.copytree(tmp_path / "model", tmp_path / "moved")
    shutil.rmtree(tmp_path / "model")
    assert Translator.load(tmp_path / "moved").translate(sources, SEARCH) == mapped
    plain = Translator.load(tmp_path / "moved", vocabulary_map=0)
    assert plain.translate(sources, SEARCH) == outputs(made, made.rows()["base"])
    scores = [[best[0].score for best in one.stream(sources, SEARCH)] for one in (plain, translator)]
    assert all(without != with_it for without, with_it in zip(*scores, strict=True))  # fewer pieces share P
    export(trained.config, trained.attempt, tmp_path / "plain", **about)
    assert Translator.load(tmp_path / "plain").vocabulary_map is None
    with pytest.raises(UserError, match=r"without a vocabulary map. Export it again with --vocabulary-map 5"):
        Translator.load(tmp_path / "plain", vocabulary_map=5)


def test_without_the_corpus_there_is_none_to_learn(made, tmp_path):
    store = Store.open(Path(shutil.copytree(made.store, tmp_path / "store")))
    shutil.rmtree(store.corpora)
    trained = found(Made(made.study, store.root))
    with pytest.raises(UserError, match=r"learnt from the run's training pairs, .* --vocabulary-map 0 goes without"):
        with_map(trained, store, 5)
    assert with_map(trained, store, 0)[1] is None
    assert not store.corpora.exists() or not list(store.corpora.iterdir())


def test_a_language_model_has_none(small):
    made = small["language"]
    run_id = made.rows()["base"].outcomes[0].run.run_id
    trained = find_trained(Named(run=run_id), Selectors(store=made.store), ("language_modelling",))
    with pytest.raises(UserError, match="--vocabulary-map is for translation"):
        with_map(trained, Store.open(made.store), 5)
    assert with_map(trained, Store.open(made.store), None) == (trained.config, None)
