"""The configuration of one network: its settings, and its layers, which two lines of text describe. Imports no torch.

settings.py defines the settings, grammar.py defines the syntax of a line, and layers/spec.py defines the base class of
the kinds of sub-layer.
"""

import contextlib
import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import TypeAdapter, ValidationError, field_validator, model_validator

from model import grammar
from model.grammar import GrammarError, Named, Repeated, Value
from model.layers.spec import Spec, places, spec_at
from model.settings import SIDES, ModelSettings, Side

# Settings of the dropout, the norm and the residual connection around a sub-layer.
AROUND = ("dropout", "norm", "norm_kind", "residual", "residual_scale")
MOST = 10_000  # maximum number of sub-layers in a line
IN_ATTENTION = ("relative", "bias", "alibi", "rotary")  # position encodings inside attention, not in the embeddings
# Settings that every network reads: widths, norms, residual connections, embeddings and positions.
_ALWAYS = frozenset({
    "encoder", "decoder", "d_model", "dropout", "positions", "norm", "shared_vocabulary",
    "residual", "residual_scale", "embedding_norm", "embedding_scale", "embedding_size", "fixnorm", "tying",
    "layer_groups", "layer_drop", "memory_embeddings", "softmax",
})  # fmt: skip
_OF_TWO_SIDES = frozenset({"shared_vocabulary", "memory_embeddings"})  # settings that only an encoder-decoder reads


class SublayerSpec(NamedTuple):
    """The kind, the options and the settings with which one sub-layer is built."""

    kind: str  # the name of the sub-layer in a line
    options: Spec
    config: ModelSettings  # settings of this sub-layer: the network's settings, with the values in brackets applied
    replaced: frozenset[str]  # names of the settings whose values are in brackets


LayerSpec = tuple[SublayerSpec, ...]


class ModelConfig(ModelSettings):
    """The configuration of one network. The defaults are the base model of the paper (section 3, Table 3).

    The paper is "Attention Is All You Need". `encoder` and `decoder` list the sub-layers. d_k and d_v do not depend on
    d_model / num_heads, because row (B) of Table 3 varies only d_k. The constructor raises pydantic.ValidationError
    (a ValueError) for settings with which no network can be built.
    """

    @field_validator("encoder", "decoder")
    @classmethod
    def _in_one_spelling(cls, line: str) -> str:
        try:
            return grammar.canonical(line)
        except GrammarError as error:  # omit the line, because pydantic's message already repeats the field's value
            raise ValueError(f"column {error.column}: {error.message}") from error

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self._check_lines()
        self._check_shared_layers()
        self._check_positions()
        self._check_residual()
        self._check_tying()
        return self

    def layers(self, side: Side) -> tuple[LayerSpec, ...]:
        """Return the layers of the encoder or the decoder. Raises ValueError for an invalid line."""
        return _layers(self, side)

    def sublayers(self) -> list[SublayerSpec]:
        """Return the sub-layers of both sides."""
        return [part for side in SIDES for layer in self.layers(side) for part in layer]

    def groups(self, side: Side) -> tuple[int, ...]:
        """Return the group of each layer. Layers of a group share weights: 0, 0, 1, 1 for four layers in two groups."""
        count = len(self.layers(side))
        sets = count
        if self.layer_groups is not None and self.layer_groups_in in ("both", side):
            sets = min(self.layer_groups, count)
        return tuple(layer * sets // count for layer in range(count))

    def expanded(self, side: Side) -> list[str]:
        """Return one text for each run of equal consecutive layers, such as "6 × self_attention, feed_forward"."""
        n = self.layers_of(side)
        texts = []
        for layer in grammar.layers(grammar.parse(getattr(self, side)), n):
            texts.append(", ".join(grammar.written(Repeated(1, named)) for named in grammar.sublayers(layer, n)))
        return [f"{len(list(equal))} × {text}" for text, equal in groupby(texts)]

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings on which this network depends."""
        read = set(_ALWAYS if self.encoder else _ALWAYS - _OF_TWO_SIDES)
        if self.encoder and self.layer_groups is not None:
            read.add("layer_groups_in")
        if self.positions == "learned":
            read.add("max_length")
        if self.softmax == "sampled":
            read.add("softmax_samples")
        for side in SIDES:
            if grammar.has_n(grammar.parse(getattr(self, side))):
                read.add(f"{side}_layers")
                if getattr(self, f"{side}_layers") is None:
                    read.add("num_layers")
        norms = {self.norm, "post"} if self.embedding_norm else {self.norm}
        for part in self.sublayers():
            read.update(set(part.options.reads_here(part.config)) - part.replaced)
            norms.add(part.config.norm)
        if norms != {"none"}:
            read.add("norm_kind")
        return frozenset(read)

    def readers(self, name: str) -> str:
        """Return a text that says which change would make this network read the setting `name`.

        Example: "a network with model.positions = relative reads it".
        """
        for other, field in type(self).model_fields.items():
            choices: tuple[Any, ...] = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            if field.annotation is bool:
                choices = (True, False)
            for choice in choices:
                with contextlib.suppress(ValueError):  # skip choices with which no network can be built
                    if name in self.model_copy(update={other: choice}).settings_read():
                        return f"a network with model.{other} = {grammar.value_text(choice)} reads it"
        if name in ("num_layers", "encoder_layers", "decoder_layers"):
            return "a line with N layers reads it, and encoder_layers and decoder_layers come before num_layers"
        kinds = []
        for kind, place in places().items():
            with contextlib.suppress(ValueError):  # skip kinds whose package cannot be imported
                if name in spec_at(place).reads:
                    kinds.append(kind)
        return f"{' and '.join(kinds)} without {name} in brackets would read it" if kinds else "no sub-layer reads it"

    def attends_to_source(self) -> bool:
        """Return whether a layer of the decoder attends to each position of the source."""
        return any(part.options.attends for layer in self.layers("decoder") for part in layer)

    def not_compiled(self) -> list[str]:
        """Return the kinds of this network's sub-layers that torch.compile cannot compile."""
        return sorted({part.kind for part in self.sublayers() if not part.options.compiles})

    def _check_lines(self) -> None:
        """Raise ValueError if the two lines do not describe a network."""
        try:
            encoder, decoder = self.layers("encoder"), self.layers("decoder")
        except GrammarError as error:
            raise ValueError(f"model.{'encoder' if error.text == self.encoder else 'decoder'} = {error}") from error
        if not decoder:
            raise ValueError("model.decoder is empty: a network needs a decoder, which predicts the next piece")
        reading = [part.kind for layer in decoder for part in layer if part.options.reads_memory]
        if encoder and not reading:
            raise ValueError(
                f'model.decoder = "{self.decoder}" has no way to the source: add cross_attention, or leave the encoder '
                'empty (model.encoder = "") for a language model'
            )
        if reading and not encoder:
            raise ValueError(f'model.encoder is empty, but {reading[0]} of model.decoder = "{self.decoder}" reads it')
        if self.layer_drop and any(part.options.bare for part in self.sublayers()):
            raise ValueError(
                f"layer_drop = {self.layer_drop} would leave out a projection, but other layers need its width"
            )

    def _check_shared_layers(self) -> None:
        for side in SIDES:
            owners, stack = self.groups(side), self.layers(side)
            for one, other, layer, next_layer in zip(owners, owners[1:], stack, stack[1:], strict=False):
                if one == other and layer != next_layer:
                    raise ValueError(
                        f"layer_groups = {self.layer_groups}: layers that share weights must be equal, and those of "
                        f"model.{side} = {getattr(self, side)!r} differ within a group"
                    )

    def _check_positions(self) -> None:
        if self.positions in IN_ATTENTION and not any(part.options.reads_distances for part in self.sublayers()):
            raise ValueError(
                f'positions = "{self.positions}" needs self_attention, but there is none: take positions = '
                f'"sinusoidal", "learned" or "none"'
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model = {self.d_model} is odd, and sinusoidal positions pair each sine with a cosine: "
                'take an even d_model, or positions = "learned"'
            )

    def _check_residual(self) -> None:
        if self.residual_scale == "deepnorm" and self.norm != "post":
            raise ValueError(f'residual_scale = "deepnorm" needs norm = "post", but norm is "{self.norm}"')
        if self.residual_scale != 1 and not self.residual:
            raise ValueError(
                f"residual_scale = {self.residual_scale} scales the residual sum, but residual = false leaves it out"
            )

    def _check_tying(self) -> None:
        if self.tying == "inputs" and not self.shared_vocabulary:
            raise ValueError(
                'tying = "inputs" makes one matrix of source and target, and shared_vocabulary = false gives them two '
                'vocabularies: take tying = "none"'
            )


@cache
def _layers(config: ModelConfig, side: Side) -> tuple[LayerSpec, ...]:
    """Return the layers of a side. Repetitions of a sub-layer with the same input width share one SublayerSpec."""
    text, n = getattr(config, side), config.layers_of(side)
    items = grammar.parse(text)
    if (total := grammar.total(items, n)) > MOST:
        raise GrammarError(text, 1, f"{total:,} sub-layers: there can be at most {MOST:,}")
    built: dict[tuple[int, int], SublayerSpec] = {}  # key: column in the line, width of the input
    width = config.d_model
    layers = []
    for group in grammar.layers(items, n):
        layer = []
        for named in grammar.sublayers(group, n):
            if (named.column, width) not in built:
                built[named.column, width] = _sublayer(named, text, config, side, width)
            part = built[named.column, width]
            width = part.config.d_model
            layer.append(part)
        layers.append(tuple(layer))
    if width != config.d_model:
        raise GrammarError(
            text,
            len(text),
            f"it ends with the width {width}: close it with projection(width={config.d_model}), d_model",
        )
    return tuple(layers)


def _sublayer(named: Named, text: str, config: ModelConfig, side: Side, width: int) -> SublayerSpec:
    """Return the sub-layer that `named` describes. `width` is the width of its input. Raises GrammarError."""
    known = places()
    if named.name not in known:
        near = _nearest(named.name, known)
        raise GrammarError(text, named.column, f"there is no sub-layer {named.name}; {near}")
    try:
        kind = spec_at(known[named.name])
        if side not in kind.sides:
            raise ValueError(f"{named.name} cannot be in the {side}, only in the {kind.sides[0]}")
        own, replaced = _split(named, kind)
        values = {name: _setting(named, name, value, config) for name, value in replaced.items()}
        options = _options(named, kind, {**own, "side": side, "other_width": width if kind.bare else config.d_model})
        if options.reads_memory and width != config.d_model and not kind.joins_widths:
            raise ValueError(f"it reads the encoder's output, which has the width {config.d_model}, not {width}")
        if width != config.d_model:
            values["d_model"] = width
        values |= options.implied()
        effective = config.model_copy(update=values) if values else config
        options.check(effective, side)
    except ValueError as error:
        raise GrammarError(text, named.column, str(error)) from error
    return SublayerSpec(named.name, options, effective, frozenset(replaced))


def _split(named: Named, kind: type[Spec]) -> tuple[Mapping[str, Value], Mapping[str, Value]]:
    """Split the values in brackets into options of the kind and settings to replace.

    Raises ValueError for a name that is neither.
    """
    options = [name for name in kind.model_fields if name not in Spec.model_fields]  # users cannot set Spec's fields
    settings = [*kind.reads, *(() if kind.bare else AROUND)]
    own = {name: value for name, value in named.options.items() if name in options}
    replaced = {name: value for name, value in named.options.items() if name not in own}
    for name in replaced:
        if name not in settings:
            raise ValueError(f"{named.name} has no option {name}; {_nearest(name, [*options, *settings])}")
    return own, replaced


def _options(named: Named, kind: type[Spec], values: Mapping[str, Any]) -> Spec:
    """Return the checked options. Raises ValueError for an invalid value of an option."""
    try:
        return kind.from_mapping(values)
    except ValidationError as error:
        raise ValueError(_refusal(named, str(error.errors()[0]["loc"][0]), error)) from error


def _setting(named: Named, name: str, value: Value, config: ModelConfig) -> Any:
    """Return the checked value of a setting in brackets. Raises ValueError for an invalid value."""
    try:
        return _adapter(type(config), name).validate_python(value, strict=True)
    except ValidationError as error:
        raise ValueError(_refusal(named, name, error)) from error


@cache
def _adapter(model: type[ModelSettings], name: str) -> TypeAdapter[Any]:
    """Return the validator of a single setting."""
    field = model.model_fields[name]
    checked: Any = Annotated[(field.annotation, *field.metadata, None)]
    return TypeAdapter(checked)


def _refusal(named: Named, option: str, error: ValidationError) -> str:
    """Return the message for an invalid value in brackets: "experts(capacity=0): expected greater than 0"."""
    first = error.errors()[0]
    if option not in named.options:
        return f"{named.name} needs {option}: write {named.name}({option}=…)"
    reason = first["msg"].replace("Input should be", "expected").replace("a valid ", "a ").replace("a int", "an int")
    return f"{named.name}({option}={grammar.value_text(named.options[option])}): {reason}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.5) or sorted(known)
    return f"nearest: {', '.join(near)}" if near else "it has none"
