"""The network: an encoder and a decoder of any architecture (section 3, figure 1), or a decoder alone.

A decoder alone is a language model. `build_model` builds a network from a configuration and draws its initial weights.

Shapes: B sentences, S source, T target, K beams, R = B·K rows, D d_model, W vocabulary. Masks: True = may attend.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.layers.attention.kernels import KERNELS
from model.layers.attention.multi_head import Attention
from model.layers.contract import CacheShape, Inputs, Sublayer
from model.parts.embedding import Classes, Embedding
from model.parts.positions import LearnedPositions
from model.protocol import Network, SearchState
from model.search.quick import applies, quick_state
from model.search.quick_decoder import DecoderState
from model.search.stepwise import Ends, Stepwise
from model.stack import Stack


def _roles(config: ModelConfig) -> tuple[str, str, str]:
    """Return the names of the matrices of source, target and softmax. Equal names stand for one shared matrix."""
    if not config.encoder:
        return "target", "target", "output" if config.tying in ("inputs", "none") else "target"
    if config.tying == "none":
        return "source", "target", "output"
    if config.tying == "inputs":
        return "shared", "shared", "output"
    separate = config.tying == "decoder" or not config.shared_vocabulary
    return ("source", "target", "target") if separate else ("shared", "shared", "shared")


class EncoderDecoder(Network):
    """A network with the stacks that `config.encoder` and `config.decoder` describe.

    `config.tying` sets which of source, target and softmax share a matrix. A shared matrix is registered once, so a
    state_dict contains it once. If `config.encoder` is empty, there is no encoder: sources have the shape (B, 0) and
    memory has the shape (B, 0, D).
    """

    def __init__(self, config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size  # of the target, and of the source unless source_vocab_size is given
        self._roles = _roles(config)
        width = config.embedding_size or config.d_model
        self.embeddings = nn.ModuleDict()
        for role in sorted(set(self._roles)):
            pieces = (source_vocab_size or vocab_size) if role == "source" else vocab_size
            factorised = not (role == "output" and config.tying == "inputs")
            self.embeddings[role] = Embedding(
                pieces, width if factorised else config.d_model, config.embedding_scale, fixnorm=config.fixnorm
            )
        # Factorised embeddings (Lan 2019, ALBERT, arXiv 1909.11942, section 3.1) replace V × D by V × E and E × D.
        self.widen, self.narrow = nn.ModuleDict(), nn.ModuleDict()
        if config.embedding_size:
            for role in sorted(set(self._roles[:2])):
                self.widen[role] = nn.Linear(width, config.d_model, bias=False)
            if config.tying != "inputs":
                self.narrow["output"] = nn.Linear(config.d_model, width, bias=False)
        output = self._embedding(self._roles[2]).weight.shape[1]
        self.classes = Classes(output, vocab_size) if config.softmax == "hierarchical" else None
        self.quick = applies(config)  # whether the network can use the quick search (model/search/quick.py)
        self.encoder = Stack(config, "encoder") if config.encoder else None
        self.decoder = Stack(config, "decoder")

    @property
    def target_embedding(self) -> Embedding:
        """The embedding of target pieces. With `tying` = "all" or "decoder" it is also the softmax's matrix."""
        return self._embedding(self._roles[1])

    def _embedding(self, role: str) -> Embedding:
        embedding = self.embeddings[role]
        assert isinstance(embedding, Embedding)
        return embedding

    @property
    def output_weight(self) -> Tensor:
        return self._embedding(self._roles[2]).matrix

    @property
    def longest(self) -> int | None:
        return self.config.longest

    def layers(self) -> Iterator[nn.Module]:
        for stack in (self.encoder, self.decoder):
            yield from stack.layers if stack else ()

    def _embed(self, pieces: Tensor, role: str) -> Tensor:
        embedded: Tensor = self._embedding(role)(pieces)
        return self.widen[role](embedded) if self.widen else embedded

    def _finish(self, output_D: Tensor) -> Tensor:
        return self.narrow["output"](output_D) if self.narrow else output_D

    def encode(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        if self.encoder is None:
            return self.output_weight.new_zeros(*source_BS.shape, self.config.d_model)
        x_BSD = self._embed(source_BS, self._roles[0])
        memory_BSD: Tensor = self.encoder(x_BSD, Inputs.encoder(source_mask_BS, x_BSD.dtype))
        return memory_BSD

    def decode(self, target_BT: Tensor, memory_BSD: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        x_BTD = self._embed(target_BT, self._roles[1])
        return self._finish(self.decoder(x_BTD, Inputs.decoder(memory_BSD, source_mask_BS, x_BTD.dtype)))

    def logits(self, hidden_D: Tensor) -> Tensor:
        logits_W = self._embedding(self._roles[2]).logits(hidden_D)
        return logits_W if self.classes is None else self.classes.log_probs(hidden_D, logits_W)

    def start_decoding(
        self, memory_BSD: Tensor, source_mask_BS: Tensor | None, beam_size: int, max_steps: int, attends: bool = False
    ) -> SearchState:
        shape = CacheShape(memory_BSD.shape[0], beam_size, max_steps)
        inputs = Inputs.decoder(memory_BSD, source_mask_BS, memory_BSD.dtype)
        if self.quick and not attends:
            return quick_state(self, self.decoder, self.target_embedding, inputs, shape, self.config)
        ends = Ends(lambda pieces: self._embed(pieces, self._roles[1]), self._finish, self.logits, memory_BSD)
        return Stepwise(self.decoder, ends, inputs, shape, attends)

    def decode_step(self, tokens_BK: Tensor, state: SearchState, visible_BKTK: Tensor | None = None) -> Tensor:
        assert isinstance(state, Stepwise | DecoderState)
        if state.step >= state.max_steps:
            raise ValueError(f"step {state.step} of a search that was started with max_steps = {state.max_steps}")
        return state.decode_step(tokens_BK, visible_BKTK)

    def next_logits(self, hidden_BKD: Tensor, state: SearchState) -> Tensor:
        assert isinstance(state, Stepwise | DecoderState)
        return state.next_logits(hidden_BKD)

    def set_attention_kernel(self, name: str) -> None:
        """Set the kernel of attention/kernels.py that computes equation 1.

        With "auto" (the default), the device decides which kernel is used. Raises ValueError for an unknown name.
        """
        if name not in (known := ["auto", *KERNELS]):
            raise ValueError(f"no attention kernel {name!r}; there are: {', '.join(known)}")
        for module in self.modules():
            if isinstance(module, Attention):
                module.kernel = name


def num_params(module: nn.Module) -> int:
    """Return the number of parameters of a module. Shared parameters count once; padding rows do not count."""
    embeddings = {id(one.weight): one for one in module.modules() if isinstance(one, Embedding)}
    padding = sum((len(one.weight) - one.vocab_size) * one.weight.shape[1] for one in embeddings.values())
    return sum(parameter.numel() for parameter in module.parameters()) - padding


def build_model(
    config: ModelConfig,
    vocab_size: int,
    source_vocab_size: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> EncoderDecoder:
    """Return a network in training mode. Its weights are drawn from torch's default generator.

    vocab_size: size of the target vocabulary, and of the source vocabulary unless `source_vocab_size` is given.
    Weights are drawn on the CPU and then moved, so that a seed gives the same weights on every device. On the meta
    device no weights are drawn. Raises ValueError if the vocabulary is shared and the two sizes differ.
    """
    if config.shared_vocabulary and source_vocab_size not in (None, vocab_size):
        raise ValueError(f"a shared vocabulary has one size, found {source_vocab_size} and {vocab_size}")
    place = torch.device("cpu" if device is None else device)
    with torch.device("meta" if place.type == "meta" else "cpu"):
        model = EncoderDecoder(config, vocab_size, source_vocab_size)
    initialise(model)
    return model.to(place)


@torch.no_grad()
def initialise(model: EncoderDecoder) -> None:
    """Draw the weights as tensor2tensor does. The paper does not specify an initialisation.

    Embeddings and learned positions are drawn from N(0, 1/√width). Every nn.Linear is drawn from the Glorot uniform
    distribution U(±√(6 / (fan_in + fan_out))), and its bias is 0. After that, sub-layers draw their other weights
    and may draw these weights again (Sublayer.initialise). LayerNorm starts with gain 1 and bias 0.

    fan_in and fan_out are those of the stored matrix. As in tensor2tensor, the projections to q, k and v of
    self-attention are stored as one matrix. For d_k = d_v = d_model / h, their initial standard deviation is therefore
    0.71 times that of three separate matrices. The projections to k and v of cross-attention are also stored as one
    matrix; for them the factor is 0.82.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Embedding):
            module.initialise()
        elif isinstance(module, LearnedPositions):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    # Each further step is a separate loop, because it changes weights that the step before it has drawn.
    for module in model.modules():
        if isinstance(module, Sublayer):
            module.initialise()
    for module in model.modules():
        if isinstance(module, Stack):
            module.shrink()
