"""The model's configuration: the columns of Table 3 and further settings. Imports no torch."""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A group of settings: frozen, typed strictly, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The checked section, by the rules of JSON: a list may stand for a tuple, text for a path, but no "1" for 1.

        pydantic has these rules for text alone. Raises pydantic.ValidationError.
        """
        return cls.model_validate_json(json.dumps(dict(values), default=str))


class ModelConfig(Section):
    """One Transformer. Every default is the base model of "Attention Is All You Need" (section 3, Table 3).

    d_k and d_v are independent of d_model / num_heads, because row (B) of the table varies d_k alone.
    Raises pydantic.ValidationError (a ValueError) for sizes no Transformer can have.
    """

    num_layers: int = Field(6, ge=1, description="layers of the encoder and of the decoder (N)")
    d_model: int = Field(512, ge=1, description="width of the residual stream (d_model)")
    d_ff: int = Field(2048, ge=1, description="inner width of the feed-forward network (d_ff)")
    num_heads: int = Field(8, ge=1, description="attention heads (h)")
    d_k: int = Field(64, ge=1, description="width of a query and a key, per head (d_k)")
    d_v: int = Field(64, ge=1, description="width of a value, per head (d_v)")
    dropout: float = Field(0.1, ge=0, lt=1, description="on sub-layer outputs and on embedding + position (P_drop)")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights; the paper has none")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="after the ReLU; the paper has none")
    positions: Literal["sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="what is added to the embeddings to tell positions apart (section 3.5)"
    )
    max_length: int = Field(1024, ge=1, description="rows of the learned position table; longer input is refused")
    norm: Literal["post", "pre"] = Field("post", description="LayerNorm after the residual sum, or before")
    shared_vocabulary: bool = Field(
        True, description="one matrix for source, target and softmax; if false, target and softmax share one"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model = {self.d_model} is odd, and sinusoidal positions pair each sine with a cosine: "
                'take an even d_model, or positions = "learned"'
            )
        return self
