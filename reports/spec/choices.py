"""The section [table] of a study file, which controls how the ablation table is printed.

`ablations report` has options with the same names as the keys of [table].

A choice that is not made is None or empty. Later choices replace earlier ones in this order: the defaults of the
format, [table], [table.FORMAT], the options of the command. CSV and JSON always contain all columns.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from experiments.labels import Text
from model.strict import StrictModel

Notes = Literal["none", "short", "full"]
Names = tuple[Text, ...]


def _for_every_column(value: Any) -> Any:
    """Convert one number of digits to a dict: 2 becomes {"": 2}, which applies to all metrics."""
    return {"": value} if isinstance(value, int) else value


class Choices(StrictModel):
    """The choices about what to print, and how."""

    columns: Names = Field(
        (), strict=False, description="columns to print, in this order: bleu, d_k, params, bleu.change …"
    )
    hide: Names = Field((), strict=False, description="columns not to print")
    plain: bool | None = Field(None, description="print no changes from base and no published numbers")
    paper: bool | None = Field(
        None,
        description="print published numbers; if unset, they are printed unless the table is plain (LaTeX's default) "
        "or `paper_corpus` excludes the corpus",
    )
    digits: Annotated[dict[str, Annotated[int, Field(ge=0, le=12)]], BeforeValidator(_for_every_column)] = Field(
        {}, description="digits after the decimal point: a number for all metrics, or by column"
    )
    caption: Text | None = Field(None, description="caption; the title if unset")
    notes: Notes | None = Field(
        None, description="notes below the table: none (only gaps), short (also the meaning of signs), or full"
    )
    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9:._+/-]*$")] | None = Field(
        None, description="\\label of LaTeX; tab:NAME if unset"
    )
    wide: bool | None = Field(None, description="LaTeX: print across both columns of a page (table*)")

    def over(self, below: "Choices") -> "Choices":
        """Return these choices, completed by those of `below`.

        If these choices set `plain` but not `paper`, `plain` also decides whether published numbers are printed.
        Columns that `below` hides stay hidden, unless these choices name `columns`.
        """
        made = {name: getattr(self, name) for name in Choices.model_fields}
        made = {name: value for name, value in made.items() if value not in (None, (), {})}
        if self.plain is not None and self.paper is None:
            made["paper"] = False if self.plain else None
        merged = {name: getattr(below, name) for name in Choices.model_fields} | made
        merged["digits"] = {**below.digits, **self.digits}
        merged["hide"] = self.hide if self.columns else (*below.hide, *self.hide)
        return Choices(**merged)


class TableChoices(Choices):
    """The choices in [table]: for all formats, and for single formats."""

    paper_corpus: Names = Field(
        (),
        strict=False,
        description="names of corpus folders (--corpus) that count as the paper's corpus; if this list is empty, "
        "published numbers are printed with any corpus",
    )
    markdown: Choices = Choices()
    terminal: Choices = Choices()
    latex: Choices = Choices()
    html: Choices = Choices()

    @property
    def of_formats(self) -> tuple[Choices, ...]:
        """The choices for single formats."""
        return (self.markdown, self.terminal, self.latex, self.html)

    def layers(self, format_: str) -> Iterable[Choices]:
        """Return the choices that apply to a format. Later choices replace earlier choices."""
        of = getattr(self, format_, None)
        return (self, *((of,) if isinstance(of, Choices) else ()))

    @model_validator(mode="after")
    def _has_a_column(self) -> Self:
        every: tuple[Choices, ...] = (self, *self.of_formats)
        for choices in every:
            both = [name for name in choices.columns if name in choices.hide]
            if both:
                raise ValueError(f"{both[0]} is in both columns and hide; keep one")
        return self
