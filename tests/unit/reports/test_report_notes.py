"""Footnotes say how numbers were made; warnings say where they were made in different ways."""

import pytest


def said(bench, *parts):
    return [text for text in bench.table().footnotes if all(part in text for part in parts)]


def test_footnotes_carry_signature_sets_steps_seeds_and_code(bench):
    bench.row("base", results=[(5.0, 25.0), (5.1, 25.5)])
    assert said(bench, "bleu: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1")
    assert said(bench, "Evaluated: dev (1,000 sentences)", "beam_size 4")
    assert said(bench, "100,000 steps", "25,000 tokens per batch", "4,000 steps of warm-up")
    assert said(bench, "Corpus: builtin (0c0de0c0), 37,000 pieces of vocabulary.")
    assert said(bench, "numbered 1–2.", "sample standard deviation")
    assert said(bench, "a processor (1 thread), fp32, torch 2.13.0")
    assert said(bench, "commit 0123456789 (c0de)")


def test_seeds_that_a_row_has_for_itself_are_named(bench):
    bench.row("base", results=[None] * 3).row("B", {"model.d_k": 16}, results=[None] * 2)
    bench.row("C", {"model.d_k": 32}, results=[None] * 3)
    assert said(bench, "numbered 1–3; B: 1–2.")


def test_notes_of_study_rows_and_plan_are_printed(bench):
    bench.study["notes"] = ["A note of the study."]
    bench.notes = ("A note of the plan.",)
    bench.row("base").row("big", {"model.d_ff": 4096}, note="213 is printed.", selected=True)
    footnotes = bench.table().footnotes
    assert footnotes[-3:] == ("A note of the study.", "big: 213 is printed.", "A note of the plan.")


def test_papers_numbers_are_called_reported_only_where_there_are_any(bench):
    bench.row("base")
    assert not said(bench, "as reported")
    bench.row("B", {"model.d_k": 16}, paper={"bleu": 25.0})
    assert said(bench, "as reported", "compare changes")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"record": {"code_digest": "beef"}}, "2 revisions of the training code: c0de (base); beef (B)"),
        ({"scored": {"code_digest": "beef"}}, "2 revisions of the evaluation code: e7a1 (base); beef (B)"),
        ({"record": {"precision": "bf16"}}, "2 precisions of training: fp32 (base); bf16 (B)"),
        ({"scored": {"precision": "bf16"}}, "2 precisions of evaluation: fp32 (base); bf16 (B)"),
        ({"record": {"device_kind": "cuda"}}, "2 kinds of device for training: cpu (base); cuda (B)"),
        ({"scored": {"device_kind": "cuda"}}, "2 kinds of device for evaluation: cpu (base); cuda (B)"),
        ({"corpus": "beef"}, "2 corpora: builtin (0c0de0c0) (base); builtin (beef) (B)"),
        ({"record": {"versions": {"torch": "2.9.0"}}}, "2 versions of torch: 2.13.0 (base); 2.9.0 (B)"),
        ({"record": {"num_params": 7}}, "B: the trained model has 7 parameters, and 65,000,000 are computed"),
    ],
)
def test_rows_made_in_different_ways_are_warned_of(bench, facts, words):
    bench.row("base")
    assert bench.table().warnings == ()
    bench.row("B", {"model.d_k": 16}, **facts)
    assert len(bench.table().warnings) == 1
    assert words in bench.table().warnings[0]


def test_a_vocabulary_of_another_size_is_another_tokenizer(bench):
    bench.row("base").row("B", {"data.vocab_size": 99})
    assert any("2 tokenizers: 37000 pieces (base); 99 pieces (B)" in text for text in bench.table().warnings)


def test_what_was_recorded_of_the_data_is_said(bench):
    train = {"kept": 28_990, "dropped_empty": 2, "dropped_long": 8}
    train |= {"source": {"unknown_rate": 0.0}, "target": {"unknown_rate": 0.0012}}
    bench.row(
        "base",
        {"data.corpus": "/home/someone/multi30k"},
        record={"data": {"source": "en", "target": "de", "train": train}},
        scored={"corpus": {"seen_in_train": {"source": 9, "target": 8, "pair": 7}}},
    )
    assert said(bench, "Corpus: multi30k (0c0de0c0), en–de, 28,990 training pairs, 10 left out (empty or too long)")
    assert said(bench, "unknown pieces in train: source 0.00%, target 0.12%")
    assert said(bench, "dev (1,000 sentences, 7 of them also in train)")
    assert not said(bench, "/home")


def test_runs_that_are_not_there_mix_nothing(bench):
    bench.row("base").row("B", {"model.d_k": 16}, corpus="beef", results=[None])
    assert bench.table().warnings == ()


def test_stale_rows_are_named_once_each_and_counted_when_many(bench):
    bench.row("base")
    for n in range(8):
        bench.row(f"C{n}", {"model.d_ff": 100 + n}, results=[(5.0, 25.0)] * 2, states=["stale"] * 2)
    (warning,) = bench.table().warnings
    assert "C0, C1, C2, C3, C4, C5 and 2 more" in warning
    assert said(bench, "†")
