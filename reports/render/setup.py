"""The paper's paragraph on the experimental setup and the reproducibility checklist, from what the runs recorded."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ablations.study.messages import number
from experiments.config import flatten
from experiments.optimization import OPTIMIZERS, SCHEDULES, OptimizerName
from experiments.store.results import Encoded
from model.config import ModelConfig
from reports.results.results import Outcome
from reports.results.table import Table
from reports.table import branches
from reports.table.cost import training_seconds
from reports.table.imported import imported
from reports.table.made_with import device
from reports.table.provenance import corpus_name, typical
from reports.table.settings import show, unexpected
from reports.table.spent import duration

HOUR = 3600.0
# Settings that the paragraph has words for.
_MODEL = ("model.num_layers", "model.d_model", "model.d_ff", "model.num_heads", "model.d_k", "model.d_v")
_STEPS = ("training.train_steps", "training.warmup_steps", "training.tokens_per_batch")
_ADAM = ("training.adam_beta1", "training.adam_beta2", "training.adam_epsilon")
_DATA = ("data.vocab_size", "data.units")
_SAID = (*_MODEL, *_STEPS, *_ADAM, *_DATA, "model.dropout", "training.label_smoothing")


def paragraph(table: Table) -> str:
    """The section "Experimental setup" of a paper; a sentence is left out where one of its numbers is not recorded."""
    return " ".join(sentence for sentence in _sentences(table) if sentence)


def _sentences(table: Table) -> Iterator[str]:
    base = typical(table)
    rows = [row for row in table.rows if not (row.ensemble or row.imported)]
    seeds = sorted({len(row.outcomes) for row in rows}) or [0]
    times = f"{seeds[0]} to {seeds[-1]} random seeds" if len(seeds) > 1 else number(seeds[0], "random seed")
    yield f"We train {number(len(rows), 'variation')} of the model, each with {times}." if rows else ""
    yield from imported(table)
    yield from (
        f"{row.key} is an ensemble of {number(len(row.outcomes[0].run.members), 'training')}, which averages their "
        "probabilities at each step of the search."
        for row in table.rows
        if row.ensemble
    )
    yield from (
        f"{branches.in_words(rows, trunk, step)}: the steps up to there are those of {trunk} with the same seed."
        for (trunk, step), rows in branches.places(table).items()
    )
    ours = base.run.config.setting_roles.frozen_defaults  # then it is a Transformer, whose settings have words
    yield from _transformer(base) if ours else ()
    row = next(row for row in table.rows if row.key == base.run.row)
    if row.num_params is not None:
        yield f"The model of {row.key} has {number(row.num_params, 'parameter')}."
    others = ", ".join(unexpected(base.run.config, table.rows, _SAID if ours else ()))
    if others:
        of = "other than the defaults (in brackets)" if ours else f"of {row.key}"
        yield f"Settings {of}: {others}."
    yield _decoding(base)
    yield _signatures(table)
    yield _took(trained(table))


def _transformer(base: Outcome) -> Iterator[str]:
    settings = dict(flatten(base.run.config))
    d_model, d_ff, heads, d_k, d_v = (settings[name] for name in _MODEL[1:])
    dropout, smoothing = (show(name, settings[name]) for name in ("model.dropout", "training.label_smoothing"))
    yield (
        f"{base.run.row} is {_network(settings)}, d_model {d_model}, d_ff {d_ff}, {number(heads, 'head')} of d_k {d_k} "
        f"and d_v {d_v}, and dropout {dropout}."
    )
    train = base.record.data.train if base.record else Encoded()
    size = "" if train.kept is None else f"{number(train.kept, 'pair')} of "
    size = size if train.bytes is None else f"{number(train.bytes, 'byte')} of "
    yield f"It is trained on {size}the corpus {corpus_name(base)}, {_encoded(base)}."
    steps, warmup, tokens = (settings[name] for name in _STEPS)
    each = "" if base.setting("data.window") else " a side"
    yield (
        f"Training takes {number(steps, 'step')} of {_optimizer(settings)} with "
        f"{SCHEDULES[settings['training.schedule']].words} and {number(warmup, 'step')} of warm-up, batches of at most "
        f"{number(tokens, 'token')}{each}, and label smoothing {smoothing}."
    )


def _network(settings: Mapping[str, Any]) -> str:
    """The layers: in words for the paper's, else as the lines of text that describe them."""
    encoder, decoder = settings["model.encoder"], settings["model.decoder"]
    count = settings["model.num_layers"]
    if (encoder, decoder) == (ModelConfig().encoder, ModelConfig().decoder):
        sides = [settings[f"model.{side}_layers"] or count for side in ("encoder", "decoder")]
        return f"a Transformer of {number(sides[0], 'encoder layer')} and {number(sides[1], 'decoder layer')}"
    lines = [f'the decoder "{decoder}"'] if not encoder else [f'the encoder "{encoder}"', f'the decoder "{decoder}"']
    repeated = f", N = {count}" if "N *" in encoder + decoder else ""
    return f"a network with {' and '.join(lines)}{repeated}"


def _encoded(base: Outcome) -> str:
    size, units = base.setting("data.vocab_size"), base.setting("data.units")
    learnt = {"bpe": "a BPE vocabulary", "unigram": "a unigram vocabulary", "word": "a vocabulary of whole words"}
    if base.setting("data.sized_by_text") and units == "word":
        return "each of whose words is a piece"
    if units in learnt:
        return f"encoded with {learnt[units]} of {number(size, 'piece')} trained on it"
    return "encoded as bytes of UTF-8" if units == "byte" else "encoded as characters"


def _optimizer(settings: Mapping[str, Any]) -> str:
    chosen: OptimizerName = settings["training.optimizer"]
    beta1, beta2, epsilon = (show(name, settings[name]) for name in _ADAM)
    adam = f"(β1 {beta1}, β2 {beta2}, ε {epsilon})"
    first, second = (show("", settings[f"training.lion_beta{number}"]) for number in (1, 2))
    usual, given = OPTIMIZERS[chosen], settings["training.momentum"]
    its = show("", usual.momentum if given is None else given)
    looks = usual.nesterov if settings["training.nesterov"] is None else settings["training.nesterov"]
    momentum = f"{'Nesterov momentum' if looks else 'momentum'} {its}"
    return {
        "adam": f"Adam {adam}",
        "adamw": f"AdamW {adam}",
        "sgd": f"SGD ({momentum})",
        "adafactor": "Adafactor",
        "lion": f"Lion (β1 {first}, β2 {second})",
        "muon": f"Muon ({momentum}) for matrices of the layers and Adam {adam} for the rest",
    }[chosen]


def _decoding(base: Outcome) -> str:
    for scored in base.scored.values():
        settings = dict(flatten(scored.spec.settings))
        if {"checkpoint", "beam_size", "length_penalty"} <= settings.keys():
            checkpoint, beam, alpha = (settings.pop(name) for name in ("checkpoint", "beam_size", "length_penalty"))
            weights = "the last checkpoint" if checkpoint == "last" else f"checkpoint choice {checkpoint}"
            rest = ", ".join(f"{name} {show(name, value)}" for name, value in settings.items())
            words = f"We decode {weights} with beam size {beam} and length penalty {alpha}"
            return f"{words} ({rest})." if rest else f"{words}."
    return ""


def _signatures(table: Table) -> str:
    found = dict.fromkeys(
        f"{column.metric} ({signature})"
        for row in table.rows
        for outcome in row.outcomes
        for column in table.columns
        if column.set in outcome.scored and (signature := outcome.scored[column.set].signature(column.metric))
    )
    return f"Scores: {', '.join(found)}." if found else ""


def _took(outcomes: list[Outcome]) -> str:
    seconds = [training_seconds(outcome) for outcome in outcomes]
    known = [value for value in seconds if value is not None]
    if not known or len(known) < len(seconds):
        return ""
    where = distinct(map(device, outcomes))
    trainings = f"{number(len(outcomes), 'training')} took"
    return f"{trainings} {duration(sum(known) / HOUR)}{' together' if len(outcomes) > 1 else ''} on {where}."


def trained(table: Table) -> list[Outcome]:
    """Each training once, even if several rows share it; for an ensemble, its members."""
    # a row's own outcome last: it has scores, which a member has not
    outcomes = [*table.members, *(o for row in table.rows if not (row.ensemble or row.imported) for o in row.outcomes)]
    return list({o.run.run_id: o for o in outcomes if o.record is not None}.values())


def distinct(texts: Iterable[str]) -> str:
    """The texts that are not empty, each once, joined by semicolons."""
    return "; ".join(dict.fromkeys(text for text in texts if text))
