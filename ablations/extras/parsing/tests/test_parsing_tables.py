"""A small trained table of trees: notes, tests between sentences, every format, a bundle."""

import json
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.exchange.redaction import NOTHING
from experiments.store.checksummed import with_checksum
from model.extensions import load
from reports.audit.explain import as_text, explain
from reports.audit.verify import SUFFIXES, verify
from reports.render.formats import render
from tests.stores import made_once
from tests.unit.reports.real import SIZES, Made, said, write

STUDY = f"""
name = "trees"
title = "Trees"
task = "parsing"

[base]
{SIZES}
data = {{vocab_size = 100, builtin_pairs = 100, target_vocab_size = 100}}
training = {{train_steps = 4, warmup_steps = 10, tokens_per_batch = 400, precision = "fp32"}}
evaluation = {{beam_size = 1, max_extra_length = 3}}

[[variation]]
key = "base"

[[variation]]
key = "pre"
set = {{model.norm = "pre"}}
"""


def make(folder: Path) -> None:
    write(folder, {"trees.toml": STUDY})
    Made(folder / "trees.toml", folder / "store").run()


@pytest.fixture(scope="module")
def made() -> Made:
    """Tests change copies only."""
    folder = made_once("trees", make)
    return Made(folder / "trees.toml", folder / "store")


def test_notes_of_a_table(made: Made) -> None:
    table = made.table()
    assert table.warnings == ()
    assert said(table, "words–trees, 100 training pairs, 100 pieces for words and", "for trees")


def test_f1_is_tested_between_sentences_and_shares_without_examples_are_not(made: Made) -> None:
    table = made.table("sentences")
    assert said(table, "complete match % (dev): no test", "no values per example") and not said(table, "F1 (dev)")
    assert table.rows[1].measures["f1"].test is not None


@pytest.mark.parametrize("format_", SUFFIXES.values())
def test_the_scores_of_a_printed_table_are_computed_again(made: Made, format_: str) -> None:
    table = made.table()
    text = render(table, format_)
    assert "None" not in text
    verdict = verify(text, table, format_)
    assert verdict.same and verdict.cells >= 2 * len(table.rows)


def test_every_row_can_be_explained(made: Made) -> None:
    table = made.table()
    for row in table.rows:
        text = as_text(explain(table, row.key))
        assert all(outcome.run.run_id in text for outcome in row.outcomes)


@pytest.mark.extra("bundles")
def test_a_bundle_s_f1_is_computed_again_from_counts_of_brackets(made: Made, tmp_path: Path) -> None:
    write_bundle = load("ablations.extras.bundles.write:write_bundle")
    read_bundle = load("ablations.extras.bundles.read:read_bundle")
    altered = load("ablations.extras.bundles.tests.altered:altered")
    chosen, path = made.chosen(), tmp_path / "b.tar.gz"
    write_bundle(path, chosen.plan, chosen.store, chosen.columns, chosen.asked, NOTHING, False)
    _, checked = read_bundle(path, tmp_path / "in").checked
    again, _, recorded = checked.partition("The sender's numbers: ")
    assert "f1 (dev)" in again and "malformed" in recorded
    changed = altered(path, tmp_path / "c.tar.gz", with_another_f1)
    with pytest.raises(UserError, match=r"f1 is recorded as 99\.9, but its counts give"):
        read_bundle(changed, tmp_path / "out")


def with_another_f1(head: object, files: dict[str, bytes]) -> None:
    """Change the recorded F1 of every evaluation, with a checksum that agrees."""
    for name, content in files.items():
        record = json.loads(content) if name.endswith("/result.json") else {}
        if "metrics" in record:
            record["metrics"]["f1"] = 99.9
            kept = {key: value for key, value in record.items() if not key.startswith("record_")}
            files[name] = json.dumps(with_checksum(kept)).encode()
