"""Table 4 as printed, and the requests of its study in every profile."""

import functools
from pathlib import Path

import pytest

from ablations.extras.parsing.task import TASK, ParsingConfig
from ablations.planning.declare_table import table_spec
from ablations.planning.match import matched
from ablations.planning.plan import Plan, plan_study
from ablations.planning.resolve import PlannedRow, resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.config.run_config import RunConfig
from experiments.run_state import RunState
from experiments.store.layout import Store
from reports.table.build import build_table

CITED = [88.3, 90.4, 90.4, 91.7, 91.3, 91.3, 92.1, 92.1, 93.0, 93.3]  # Vaswani et al. 2017, in the order of Table 4


@functools.cache
def rows_of(profile: str) -> dict[str, PlannedRow]:
    chosen = selection(profile=profile)
    study, _ = matched(load_study("table4"), chosen, TASK)
    return {row.variation.key: row for row in resolve(study, chosen, TASK)}


def plan_of(profile: str, tmp_path: Path) -> Plan:
    chosen = selection(profile=profile)
    return plan_study(load_study("table4"), chosen, TASK, tmp_path / "none", lambda *_: RunState("missing"))


def test_table_4_as_printed() -> None:
    study = load_study("table4")
    assert [(row.key, row.paper) for row in study.variations] == [
        ("wsj", {"f1": 91.3}),
        ("lstm", {}),
        ("semi-supervised", {"f1": 92.7}),
    ]
    assert [cited.values["f1"] for cited in study.cited] == CITED
    (vinyals,) = [cited for cited in study.cited if cited.key == "lstm"]
    assert vinyals.label.startswith("Vinyals") and vinyals.values == {"f1": 88.3}


def test_table_4_of_the_paper_profile_is_the_task_s_defaults() -> None:
    """Warm-up is base's, as section 6.3 leaves all other parameters; tensor2tensor's is a profile of its own."""
    rows = rows_of("paper")
    base, semi = rows["wsj"].config, rows["semi-supervised"].config
    assert base.model_copy(update={"evaluation": ParsingConfig().evaluation}) == ParsingConfig()
    assert base.evaluation.sets == ("dev", "test")
    assert set(rows["semi-supervised"].overrides) == {"data.train_extra", "data.vocab_size"}
    assert (base.data.vocab_size, semi.data.vocab_size) == (16_000, 32_000)
    assert (base.model.attention_dropout, semi.model.attention_dropout) == (0.2, 0.2)
    assert (base.evaluation.beam_size, base.evaluation.length_penalty) == (21, 0.3)
    assert base.training.warmup_steps == RunConfig().training.warmup_steps == 4000
    theirs = rows_of("tensor2tensor")["wsj"].config
    assert theirs == base.model_copy(update={"training": base.training.model_copy(update={"warmup_steps": 16_000})})


def test_table_4_s_lstm_has_its_paper_s_layers_and_wsj_s_size_in_the_miniatures() -> None:
    for profile in ("paper", "tensor2tensor", "demo", "small"):
        rows = {key: row.config for key, row in rows_of(profile).items()}
        assert rows["lstm"].model.encoder == "3 * lstm(backward=true, residual=false)"
        assert rows["lstm"].model.decoder == "2 * lstm(residual=false), attentional_lstm(residual=false)"
        sizes = {key: TASK.num_params(config) for key, config in rows.items()}
        if profile in ("demo", "small"):
            assert sizes["lstm"] == pytest.approx(sizes["wsj"], rel=0.05)
        else:
            assert rows["lstm"].model.d_model == 256


@pytest.mark.parametrize("profile", ["demo", "small"])
def test_table_4_plans_on_generated_trees(profile: str, tmp_path: Path) -> None:
    runs = plan_of(profile, tmp_path).runs
    assert [[e.set for e in run.evaluations] for run in runs] == [["dev", "test"]] * 3
    assert runs[0].run_id != runs[2].run_id and runs[0].spec.inputs != runs[2].spec.inputs


def test_of_the_paper_s_sentences_one_is_not_true_of_its_own_numbers(tmp_path: Path) -> None:
    """Table 4 has one more model above the Transformer's 92.7. None can be checked before anything was run."""
    claims = build_table(table_spec(plan_of("demo", tmp_path), TASK.columns), Store(tmp_path)).claims
    (wrong,) = [claim for claim in claims if claim.paper and claim.paper.state != "holds"]
    assert wrong.check == "semi-supervised is better than multi-task in f1" and wrong.paper is not None
    assert wrong.paper.state == "does not hold"
    assert "against 93 (Luong et al. 2015): worse by 0.3" in wrong.paper.words
    assert len(claims) == 7 and {claim.here.state for claim in claims} == {"cannot be checked"}
