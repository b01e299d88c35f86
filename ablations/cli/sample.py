"""`ablations sample`: let a trained language model write."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import for_data
from ablations.service import choose_run
from ablations.service.selected import Selectors
from experiments.errors import UserError


def sample(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STUDY]", help="The study that trained the model (not with --run or --model)."),
    ] = None,
    *,
    named: choose_run.Named,
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="A model written by `ablations export`.")] = None,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="The text to be continued; a document's start.")] = "",
    pieces: Annotated[int, typer.Option(metavar="N", min=1, help="The most pieces of each sample.")] = 200,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="How many continuations.")] = 1,
    temperature: Annotated[float, typer.Option(metavar="T", min=0, help="0: the most probable piece each time.")] = 1.0,
    top_k: Annotated[int, typer.Option(metavar="K", min=0, help="Draw from the K most probable; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the fewest that together have this probability.")
    ] = 1.0,
    draw_seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the draws; another gives another text.")] = 1,
    checkpoint: options.Checkpoint = None,
    precision: options.Precision = "fp32",
    devices: options.Devices = "auto",
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Continue a text with a trained language model, up to the end of a document."""
    if not 0 < top_p <= 1:
        raise UserError(f"--top-p {top_p}: a probability above 0, 1 at most.")
    named, _ = choose_run.study_first(named, words or (), [], without=model is not None)
    choose_run.only_model(model, named, checkpoint)
    spec = choose_run.device_spec(devices)
    found = None if model else choose_run.find_trained(named, selectors, ("language_modelling",))
    from experiments.tasks.language.sampler import Choice, Sampler
    from experiments.tasks.language_config import LanguageConfig

    if model:
        sampler = Sampler.load(model, spec, precision)
    else:
        assert found is not None and isinstance(found.config, LanguageConfig)
        sampler = Sampler.of_run(found.config, found.attempt, spec, precision, checkpoint)
    texts = sampler.sample(prompt, pieces, Choice(temperature, top_k, top_p), samples, draw_seed)
    out = for_data()
    for number, text in enumerate(texts, start=1):
        if as_json:
            out.write(json.dumps({"sample": number, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n")
        else:
            out.write(f"{prompt}{text}\n" + "\n---\n" * (number < samples))
    out.flush()
