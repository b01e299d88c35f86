"""What others published, as a study file writes it: results of other systems, and what the paper says of them."""

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from ablations.study.parts import Key, Text
from model.section import Section


class Cited(Section):
    """A published result of another system, printed as a row of the table. It is never run."""

    label: Text
    group: Text = Field("", description="such as the training data used; results of one group stand together")
    values: dict[str, FiniteFloat] = Field(description="by the names of `paper`: perplexity, bleu, params, …")
    note: Text = ""


class Claim(Section):
    """A sentence of the paper about its own numbers, checked in these and in what was run here (a note says both).

    `row` is compared with the best of the others in one number: by a difference (`margin`) or by a ratio (`fraction`).
    """

    text: Text = Field(description="the sentence, with its place in the paper")
    row: Key = Field(description="key of the row that the sentence praises")
    number: Key = Field(description="what is compared, by the names of `paper`: bleu, flops, …")
    margin: FiniteFloat | None = Field(None, ge=0, description="better than the best of the others by more than this")
    fraction: FiniteFloat | None = Field(None, gt=0, description="less than this times the lowest of the others")
    published: tuple[Text, ...] = Field(
        (), strict=False, description="labels of the cited results; if unset, all of the row's group"
    )
    here: tuple[Key, ...] = Field((), strict=False, description="keys of the rows that stand for them in this study")

    @model_validator(mode="after")
    def _one_comparison(self) -> Self:
        if (self.margin is None) == (self.fraction is None):
            raise ValueError("write either margin (a difference) or fraction (a ratio)")
        return self
