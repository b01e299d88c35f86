"""From an architecture's line of text to the sub-layers of each layer. Imports no torch."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from model.grammar import GrammarError, Named, Repeated, Value, parse
from model.recurrent_specs import AttentionalLSTMSpec, FactorisedLSTMSpec, GRUSpec, LSTMSpec, NeuralGPUSpec, RNNSpec
from model.settings import ModelSettings
from model.specs import (
    AverageSpec,
    ConvolutionSpec,
    CrossAttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LastStateSpec,
    MemoryNetworkSpec,
    ProjectionSpec,
    SamePositionSpec,
    SelfAttentionSpec,
    Side,
    Spec,
)

KINDS: dict[str, type[Spec]] = {
    "self_attention": SelfAttentionSpec,
    "cross_attention": CrossAttentionSpec,
    "feed_forward": FeedForwardSpec,
    "rnn": RNNSpec,
    "gru": GRUSpec,
    "lstm": LSTMSpec,
    "convolution": ConvolutionSpec,
    "average": AverageSpec,
    "experts": ExpertsSpec,
    "last_state": LastStateSpec,
    "same_position": SamePositionSpec,
    "attentional_lstm": AttentionalLSTMSpec,
    "factorised_lstm": FactorisedLSTMSpec,
    "memory_network": MemoryNetworkSpec,
    "neural_gpu": NeuralGPUSpec,
    "projection": ProjectionSpec,
}
AROUND = ("dropout", "norm", "norm_kind", "residual", "residual_scale")  # of any sub-layer: what surrounds it
MOST = 10_000  # sub-layers of a line
IN_ATTENTION = ("relative", "bias", "alibi", "rotary")  # positions that add nothing to the embeddings
SIDES: tuple[Side, ...] = ("encoder", "decoder")


class SublayerSpec(NamedTuple):
    """One sub-layer of a layer, ready to be built."""

    kind: str  # its name in KINDS
    options: Spec
    config: ModelSettings  # the model's settings, with those that its brackets replace
    replaced: frozenset[str]  # names of those


LayerSpec = tuple[SublayerSpec, ...]


@cache
def layers(config: ModelSettings, side: Side) -> tuple[LayerSpec, ...]:
    """The layers of the encoder or the decoder. Raises ValueError for a line that describes none."""
    text = getattr(config, side)
    count = _count(config, side)
    built: dict[tuple[int, int], SublayerSpec] = {}  # by column and width: repetitions share one
    width = config.d_model

    def sublayer(named: Named) -> SublayerSpec:
        nonlocal width
        if (named.column, width) not in built:
            built[named.column, width] = _sublayer(named, text, config, side, width)
        part = built[named.column, width]
        width = part.config.d_model
        return part

    items = parse(text)
    if _total(items, count) > MOST:
        raise GrammarError(text, 1, f"{_total(items, count):,} sub-layers: there can be at most {MOST:,}")
    found = tuple(tuple(sublayer(named) for named in _flat(group, count)) for group in _groups(items, count))
    if width != config.d_model:
        raise GrammarError(
            text,
            len(text),
            f"it ends with the width {width}: close it with projection(width={config.d_model}), d_model",
        )
    return found


def _count(config: ModelSettings, side: Side) -> int:
    """N of the side's line."""
    count: int = getattr(config, f"{side}_layers") or config.num_layers
    return count


def _total(items: Iterable[Repeated], count: int) -> int:
    """The number of sub-layers."""
    return sum(
        (count if times is None else times) * (1 if isinstance(content, Named) else _total(content, count))
        for times, content in items
    )


def _groups(items: Iterable[Repeated], count: int) -> Iterator[tuple[Repeated, ...]]:
    """The layers: groups of the outermost level, and sub-layers outside of brackets."""
    for times, content in items:
        for _ in range(count if times is None else times):
            yield (Repeated(1, content),) if isinstance(content, Named) else content


def _flat(items: Iterable[Repeated], count: int) -> Iterator[Named]:
    for times, content in items:
        for _ in range(count if times is None else times):
            yield from [content] if isinstance(content, Named) else _flat(content, count)


def _sublayer(named: Named, text: str, config: ModelSettings, side: Side, width: int) -> SublayerSpec:
    """width: of what it reads."""
    kind = KINDS.get(named.name)
    if kind is None:
        raise GrammarError(text, named.column, f"there is no sub-layer {named.name}; {_or(named.name, KINDS)}")
    if side not in kind.sides:
        raise GrammarError(text, named.column, f"{named.name} cannot be in the {side}, only in the {kind.sides[0]}")
    around = () if kind.bare else AROUND
    options_of = [name for name in kind.model_fields if name not in Spec.model_fields]  # these follow from the line
    own = {name: value for name, value in named.options.items() if name in options_of}
    replaced = {name: value for name, value in named.options.items() if name not in own}
    for name in replaced:
        if name not in (*kind.reads, *around):
            known = [*options_of, *kind.reads, *around]
            raise GrammarError(text, named.column, f"{named.name} has no option {name}; {_or(name, known)}")
    try:
        values = {n: _adapter(type(config), n).validate_python(v, strict=True) for n, v in replaced.items()}
        options = kind.from_mapping({**own, "side": side, "other_width": width if kind.bare else config.d_model})
        if options.reads_memory and width != config.d_model and kind is not CrossAttentionSpec:
            raise ValueError(f"it reads the encoder's output, which has the width {config.d_model}, not {width}")
        if isinstance(options, ProjectionSpec):
            values |= {"d_model": options.width, "dropout": 0.0, "norm": "none", "residual": False}
        elif width != config.d_model:
            values |= {"d_model": width}
        effective = config.model_copy(update=values) if values else config
        options.check(effective, side)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"])) or next(iter(replaced), "")
        written = _value(first["input"]) if isinstance(first["input"], bool | int | float | str) else "that"
        reason = (
            first["msg"].replace("Input should be", "expected").replace("a valid ", "a ").replace("a int", "an int")
        )
        raise GrammarError(text, named.column, f"{named.name}({option}={written}): {reason}") from error
    except GrammarError:
        raise
    except ValueError as error:
        raise GrammarError(text, named.column, str(error)) from error
    return SublayerSpec(named.name, options, effective, frozenset(replaced))


@cache
def _adapter(model: type[ModelSettings], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    checked: Any = Annotated[(field.annotation, *field.metadata, None)]
    return TypeAdapter(checked)


def _or(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.5) or sorted(known)
    return f"nearest: {', '.join(near)}" if near else "it has none"


def check(config: ModelSettings) -> None:
    """Raises ValueError for lines that describe no network, and for settings that do not fit them."""
    try:
        encoder, decoder = (layers(config, side) for side in SIDES)
    except GrammarError as error:
        raise ValueError(f"model.{'encoder' if error.text == config.encoder else 'decoder'} = {error}") from error
    if not decoder:
        raise ValueError("model.decoder is empty: a network needs a decoder, which predicts the next piece")
    reading = [part.kind for layer in decoder for part in layer if part.options.reads_memory]
    if encoder and not reading:
        raise ValueError(
            f'model.decoder = "{config.decoder}" has no way to the source: add cross_attention, or leave the encoder '
            'empty (model.encoder = "") for a language model'
        )
    if reading and not encoder:
        raise ValueError(f'model.encoder is empty, and {reading[0]} of model.decoder = "{config.decoder}" reads it')
    if config.layer_drop and any(part.options.bare for layer in (*encoder, *decoder) for part in layer):
        raise ValueError(f"layer_drop = {config.layer_drop} would leave out a projection, whose width others need")
    for side, stack in zip(SIDES, (encoder, decoder), strict=True):
        owners = groups(config, side)
        for one, other, layer, next_layer in zip(owners, owners[1:], stack, stack[1:], strict=False):
            if one == other and layer != next_layer:
                raise ValueError(
                    f"layer_groups = {config.layer_groups}: layers that share weights must be equal, and those of "
                    f"model.{side} = {getattr(config, side)!r} differ within a group"
                )

    if config.positions in IN_ATTENTION and not any(
        part.kind == "self_attention" for layer in (*encoder, *decoder) for part in layer
    ):
        raise ValueError(
            f'positions = "{config.positions}" is seen by self_attention alone, and here is no self_attention: '
            'take positions = "sinusoidal", "learned" or "none"'
        )


def canonical(text: str) -> str:
    """The line in one spelling, so that spaces do not make another run. Raises GrammarError."""
    return _join(parse(text))


def _join(items: Iterable[Repeated]) -> str:
    return ", ".join(_item(item) for item in items)


def _item(item: Repeated) -> str:
    count = "" if item.times == 1 else f"{item.times or 'N'} * "
    if not isinstance(item.content, Named):
        return f"{count}({_join(item.content)})"
    options = ", ".join(f"{name}={_value(value)}" for name, value in item.content.options.items())
    return f"{count}{item.content.name}{f'({options})' if options else ''}"


def _value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def expanded(config: ModelSettings, side: Side) -> list[str]:
    """One text per run of equal layers: "6 × self_attention, feed_forward"."""
    count = _count(config, side)
    layers = (
        ", ".join(_item(Repeated(1, named)) for named in _flat(group, count))
        for group in _groups(parse(getattr(config, side)), count)
    )
    return [f"{len(list(equal))} × {text}" for text, equal in groupby(layers)]


def deepnorm(config: ModelSettings, side: Side) -> tuple[float, float]:
    """DeepNorm's α, the factor on x, and β, the factor on first weights (Wang 2022, arXiv 2203.00555, figure 2).

    For N layers of the encoder and M of the decoder. Its α and β of an encoder-decoder; of a decoder alone.
    """
    # the settings may be those of one sub-layer, with its brackets
    encoder, decoder = (len([*_groups(parse(getattr(config, one)), _count(config, one))]) for one in SIDES)
    if not encoder:
        return (2 * decoder) ** 0.25, (8 * decoder) ** -0.25
    if side == "decoder":
        return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25
    depth = (encoder**4 * decoder) ** (1 / 16)
    return 0.81 * depth, 0.87 / depth


def groups(config: ModelSettings, side: Side) -> tuple[int, ...]:
    """For each layer, in order, the index of the weights that it uses: 0, 0, 1, 1 for four layers in two groups."""
    count = len(layers(config, side))
    shares = config.layer_groups_in in ("both", side)
    sets = min((config.layer_groups if shares else None) or count, count)
    return tuple(layer * sets // count for layer in range(count))


# Settings that every network reads: the widths between sub-layers, what surrounds them, embeddings and positions.
_ALWAYS = frozenset({
    "encoder", "decoder", "d_model", "dropout", "positions", "norm", "shared_vocabulary",
    "residual", "residual_scale", "embedding_norm", "embedding_scale", "embedding_size", "fixnorm", "tying",
    "layer_groups", "layer_drop", "memory_embeddings", "softmax",
})  # fmt: skip
_OF_TWO_SIDES = frozenset({"shared_vocabulary", "memory_embeddings"})  # not of a decoder alone


def settings_read(config: ModelSettings) -> frozenset[str]:
    """Names of the settings on which this network depends."""
    read = set(_ALWAYS if config.encoder else _ALWAYS - _OF_TWO_SIDES)
    if config.encoder and config.layer_groups is not None:
        read.add("layer_groups_in")
    if config.positions == "learned":
        read.add("max_length")
    if config.softmax == "sampled":
        read.add("softmax_samples")
    norms = {config.norm, "post"} if config.embedding_norm else {config.norm}
    for side in SIDES:
        if _has_n(parse(getattr(config, side))):
            read |= {f"{side}_layers"} | ({"num_layers"} if getattr(config, f"{side}_layers") is None else set())
        for layer in layers(config, side):
            for part in layer:
                read.update(set(part.options.reads_here(part.config)) - part.replaced)
                norms.add(part.config.norm)
    return frozenset(read if norms == {"none"} else {*read, "norm_kind"})


def attends_to_source(config: ModelSettings) -> bool:
    """Whether a layer of the decoder compares its input with each position of the source."""
    return any(part.options.attends for layer in layers(config, "decoder") for part in layer)


def not_compiled(config: ModelSettings) -> list[str]:
    """Kinds of this network that torch's compiler refuses."""
    parts = [part for side in SIDES for layer in layers(config, side) for part in layer]
    return sorted({part.kind for part in parts if not part.options.compiles})


def readers(config: ModelSettings, name: str) -> str:
    """What would make this network read a setting: "a network with model.positions = relative reads it"."""
    for other, field in type(config).model_fields.items():
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        for choice in (*choices, *((True, False) if field.annotation is bool else ())):
            with contextlib.suppress(ValueError):  # a choice with which no network can be built
                if name in settings_read(config.model_copy(update={other: choice})):
                    return f"a network with model.{other} = {_value(choice)} reads it"
    kinds = [kind for kind, options in KINDS.items() if name in options.reads]
    if name in ("num_layers", "encoder_layers", "decoder_layers"):
        return "a line with N layers reads it, and encoder_layers and decoder_layers come before num_layers"
    return f"{' and '.join(kinds)} without {name} in brackets would read it" if kinds else "no sub-layer reads it"


def _has_n(items: Iterable[Repeated]) -> bool:
    return any(item.times is None or (not isinstance(item.content, Named) and _has_n(item.content)) for item in items)
