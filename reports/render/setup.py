"""The format setup: a paragraph on the experimental setup, the reproducibility checklist, and the cost of the table.

All facts come from the records of the runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.config.training import OPTIMIZERS, SCHEDULES, OptimizerName
from experiments.dotted import flatten
from experiments.events.accounting import HOUR, Amounts
from experiments.identity import without_runs
from experiments.messages import number
from experiments.store.results import Earlier, Encoded
from model.config import ModelConfig
from reports.results.accounting import RowSpent, TableSpent
from reports.results.run_outcomes import Outcome
from reports.results.table import Table, missing_cells
from reports.table.cost import training_seconds
from reports.table.notes import branch_in_words, imported, places
from reports.table.provenance import code, corpus_name, device, software, typical
from reports.table.settings import show, unexpected
from reports.table.total_cost import count, duration, in_words

# Settings that the paragraph describes in words.
_MODEL = ("model.num_layers", "model.d_model", "model.d_ff", "model.num_heads", "model.d_k", "model.d_v")
_STEPS = ("training.train_steps", "training.warmup_steps", "training.tokens_per_batch")
_ADAM = ("training.adam_beta1", "training.adam_beta2", "training.adam_epsilon")
_DATA = ("data.vocab_size", "data.units")
_DESCRIBED = (*_MODEL, *_STEPS, *_ADAM, *_DATA, "model.dropout", "training.label_smoothing")


def paragraph(table: Table) -> str:
    """Return the section "Experimental setup" of a paper. Sentences with numbers that are not recorded are left out."""
    return " ".join(sentence for sentence in _sentences(table) if sentence)


def _sentences(table: Table) -> Iterator[str]:
    base = typical(table)
    rows = [row for row in table.rows if not (row.ensemble or row.imported)]
    seeds = sorted({len(row.outcomes) for row in rows}) or [0]
    times = f"{seeds[0]} to {seeds[-1]} random seeds" if len(seeds) > 1 else number(seeds[0], "random seed")
    yield f"We train {number(len(rows), 'variation')} of the model, each with {times}." if rows else ""
    yield from (note.text for note in imported(table))
    yield from (
        f"{row.key} is an ensemble of {number(len(row.outcomes[0].run.spec.members), 'training')}, which averages "
        "their probabilities at each step of the search."
        for row in table.rows
        if row.ensemble
    )
    yield from (
        f"{branch_in_words(rows, parent_run, step)}, with the same seed."
        for (parent_run, step), rows in places(table).items()
    )
    ours = base.run.config.setting_roles.frozen_defaults  # a built-in task, whose settings can be described in words
    yield from _transformer(base) if ours else ()
    row = next(row for row in table.rows if row.key == base.run.row)
    if row.num_params is not None:
        yield f"The model of {row.key} has {number(row.num_params, 'parameter')}."
    said = _DESCRIBED if ours else ()
    others = ", ".join(unexpected(base.run.config, table.rows, said))
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
    """Return a description of the layers: in words for the paper's Transformer, else the settings that define them."""
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
    learnt = {
        "bpe": "a BPE vocabulary",
        "unigram": "a unigram vocabulary",
        "wordpiece": "a word-piece vocabulary",
        "word": "a vocabulary of whole words",
    }
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
        for outcome in table.outcomes
        for column in table.listed
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
    """Return each finished training once, even if several rows share it. Members of ensembles are included."""
    # The outcome of a row replaces that of a member, because only the row's outcome has scores.
    outcomes = [*table.members, *(o for row in table.rows if not (row.ensemble or row.imported) for o in row.outcomes)]
    return list({o.run.run_id: o for o in outcomes if o.record is not None}.values())


def distinct(texts: Iterable[str]) -> str:
    """Return the texts that are not empty, each once, joined by semicolons."""
    return "; ".join(dict.fromkeys(text for text in texts if text))


def checklist(table: Table) -> list[tuple[str, str]]:
    """Return the questions of reviewers' checklists, each with the answer from the records of the runs."""
    outcomes = trained(table)
    parameters = "; ".join(f"{row.key} {row.num_params:,}" for row in table.rows if row.num_params is not None)
    no_device = "not recorded" if any(row.imported for row in table.rows) else "nothing is trained yet"
    return [
        ("Number of parameters of each model", parameters or "not recorded"),
        ("Computing infrastructure", distinct(map(device, outcomes)) or no_device),
        ("Software", distinct(map(software, outcomes)) or "not recorded"),
        ("Runtime", _runtime(outcomes)),
        ("Exact number of training runs", _count(table)),
        ("Variance", _variance(table)),
        ("Statistical test", " ".join(note.text for note in table.test_notes) or "none"),
        ("Validation score beside every test score", _dev_scores(table)),
        ("Data", distinct(map(_data_of, outcomes)) or "not recorded"),
        ("Evaluation metrics", "; ".join(dict.fromkeys(f"{c.metric} on {c.set}" for c in table.listed))),
        ("Hyperparameters", _hyperparameters(table)),
        ("Code", _code(table)),
    ]


def _code(table: Table) -> str:
    places, program = code(trained(table), {row.key for row in table.rows if row.spec.diff})
    return "; ".join(filter(None, [*places, program])) or "not recorded"


def _runtime(outcomes: list[Outcome]) -> str:
    seconds = [value for outcome in outcomes if (value := training_seconds(outcome)) is not None]
    if not seconds:
        return "not recorded"
    total, longest = duration(sum(seconds) / HOUR), duration(max(seconds) / HOUR)
    mean = duration(sum(seconds) / len(seconds) / HOUR)
    text = f"{total} of training for the table's numbers, {mean} a run on average, {longest} at most"
    unfinished = _ended_early(outcomes)
    if unfinished:
        lost = duration(sum(part.seconds for part in unfinished) / HOUR)
        text += f"; {lost} of it in {number(len(unfinished), 'attempt')} that ended early"
    continued = [outcome for outcome in outcomes if outcome.record and outcome.record.continues]
    if continued:
        text += f"; {number(len(continued), 'run')} continued a shorter one, whose time is not counted again"
    unknown = len(outcomes) - len(seconds)
    return f"{text}; without {number(unknown, 'interrupted run')}, whose time is not recorded" if unknown else text


def _ended_early(outcomes: Iterable[Outcome]) -> list[Earlier]:
    """Return the earlier attempts at these trainings that ended before the training was finished."""
    attempts = [one for outcome in outcomes if outcome.record for one in outcome.record.earlier_attempts]
    return [one for one in attempts if one.ended != "finished"]


def _count(table: Table) -> str:
    requested, done = sum(len(row.outcomes) for row in table.rows if not row.ensemble), trained(table)
    elsewhere = sum(len(row.outcomes) for row in table.rows if row.imported)
    ensembles = sum(row.ensemble for row in table.rows)
    early = len(_ended_early(done))
    parts = [number(len(table.rows), "row"), f"{number(requested, 'run')} in the table"]
    parts += [number(ensembles, "ensemble")] if ensembles else []
    parts += [f"{elsewhere} of them trained elsewhere and imported"] if elsewhere else []
    parts.append(f"{number(len(done), 'training')} finished")
    text = ", ".join(parts) + (f" (after {number(early, 'attempt')} that ended early)" if early else "")
    gaps = missing_cells(table)
    return f"{text}; {number(gaps, 'cell')} without a number" if gaps else text


def _variance(table: Table) -> str:
    counts = {len(row.outcomes) for row in table.rows if not row.ensemble}
    if counts <= {1}:
        return "none: one seed a row"
    text = "sample standard deviation over seeds, beside each mean"
    return f"{text}; none for rows with one seed" if 1 in counts else text


def _dev_scores(table: Table) -> str:
    sets = {column.set for column in table.columns}
    if sets <= {"dev"}:
        return "only the development set is scored"
    return "yes" if "dev" in sets else "no: the development set was not scored"


def _data_of(outcome: Outcome) -> str:
    """Return the training corpus of a run and the sets on which the run was scored, with their sizes."""
    pairs = outcome.record.data.train.kept if outcome.record else None
    inputs = ", ".join(f"{name} ({digest[:8]})" for name, digest in without_runs(outcome.run.spec.inputs).items())
    name = corpus_name(outcome) or inputs
    parts = [f"{name}: {number(pairs, 'training pair')}" if pairs is not None else name]
    for name, scored in outcome.scored.items():
        sentences = scored.record.sentences if scored.record else None
        parts += [f"{name} {number(sentences, 'sentence')}"] if sentences is not None else []
    return ", ".join(part for part in parts if part)


def _hyperparameters(table: Table) -> str:
    tuned = table.spec.tuned
    searched = f"tuned row by row: {', '.join(tuned)}" if tuned else "the study records no search"
    return (
        "config.json of each run has the full configuration; rows differ from base only in what the table and its "
        f"notes name; {searched}"
    )


def as_markdown(table: Table) -> str:
    """Return the paragraph on the setup, the checklist, the cost of the table and all its notes, as Markdown."""
    from reports.render.markdown import escape

    lines = [f"{escape(table.bundle)}\n"] if table.bundle else []
    lines += [f"**Experimental setup**\n\n{escape(paragraph(table))}\n\n**Reproducibility checklist**\n"]
    lines += [f"- **{escape(question)}**: {escape(answer)}" for question, answer in checklist(table)]
    if found := cost_lines(table):
        lines += ["\n**What it cost**\n", *(f"- **{escape(what)}**: {escape(cost)}." for what, cost in found)]
    lines += ["\n**Notes**\n", *(f"- **Warning:** {escape(text)}" for text in table.warnings)]
    lines += [f"- {escape(note.text)}" for note in table.footnotes]
    return "\n".join(lines) + "\n"


def cost_lines(table: Table) -> list[tuple[str, str]]:
    """Return (name, cost) of the table and of each row; [] if no attempt at a run has started."""
    spent = table.spent
    if not spent.total.attempts:
        return []
    return [
        ("In all", _amounts(spent.total)),
        *((key, _row(row)) for key, row in spent.rows.items()),
        ("How it is counted", "; ".join(_how(spent))),
    ]


def _amounts(spent: Amounts) -> str:
    return f"{count(spent)}: {in_words(spent)}" if spent.attempts else "nothing yet"


def _row(row: RowSpent) -> str:
    of_rows = f"shares runs with {', '.join(row.counted_in)}, where they are counted" if row.counted_in else ""
    own = _amounts(row.runs) if row.runs.attempts or not of_rows else ""
    tuning = f"tuning: {_amounts(row.tuning)}" if row.tuning.attempts else ""
    return "; ".join(filter(None, (own, tuning, of_rows)))


def _how(spent: TableSpent) -> Iterator[str]:
    every = spent.total
    until = "its end"
    if every.unseen:
        until = f"its end, or between the known events of {number(every.unseen, 'attempt')}"
    yield (
        "all attempts at these runs, also failed, stopped, killed and repeated ones; wall time is from the start of "
        f"an attempt's process to {until}; device time is wall time × threads of processors, or × GPUs and the share "
        "of each that the run leased"
    )
    yield (
        "the runtime in the checklist is the training time of the attempts that led to the present results, without "
        "scoring, and without earlier attempts if training started again from the beginning"
    )
    if every.without_cpu_joules < every.attempts:
        yield (
            "energy of processors (RAPL, packages and memory) is divided among the processes of a machine by their CPU "
            "time"
        )
    if every.without_gpu_joules < every.on_gpus:
        yield "energy of GPUs (NVML) is multiplied by the leased share"
    if spent.shared:
        yield f"{number(spent.shared, 'run')} also made for other tables: counted in full"
