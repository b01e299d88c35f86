"""The configuration of one network: its settings, refused where no network can have them. Imports no torch."""

from typing import Self

from pydantic import field_validator, model_validator

from model import architecture
from model.grammar import GrammarError
from model.settings import ModelSettings


class ModelConfig(ModelSettings):
    """One network. Every default is the base model of "Attention Is All You Need" (section 3, Table 3).

    `encoder` and `decoder` name the sub-layers (grammar.py has the grammar, specs.py the kinds). d_k and d_v are
    independent of d_model / num_heads, because row (B) of the table varies d_k alone.
    Raises pydantic.ValidationError (a ValueError) for sizes no Transformer can have.
    """

    @field_validator("encoder", "decoder")
    @classmethod
    def _in_one_spelling(cls, line: str) -> str:
        try:
            return architecture.canonical(line)
        except GrammarError as error:  # the message of a field repeats its value
            raise ValueError(f"column {error.column}: {error.message}") from error

    @model_validator(mode="after")
    def _possible(self) -> Self:
        architecture.check(self)
        if self.residual_scale == "deepnorm" and self.norm != "post":
            raise ValueError(f'residual_scale = "deepnorm" is made for norm = "post", and norm is "{self.norm}"')
        if self.residual_scale != 1 and not self.residual:
            raise ValueError(f"residual_scale = {self.residual_scale} scales a sum, and residual = false leaves it out")
        if self.tying == "inputs" and not self.shared_vocabulary:
            raise ValueError(
                'tying = "inputs" makes one matrix of source and target, and shared_vocabulary = false gives them two '
                'vocabularies: take tying = "none"'
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model = {self.d_model} is odd, and sinusoidal positions pair each sine with a cosine: "
                'take an even d_model, or positions = "learned"'
            )
        return self
