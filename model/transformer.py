"""The Transformer (section 3, figure 1).

Shapes: B sentences, S source, T target, K beams, R = B·K rows, D d_model, W vocabulary. Masks: True = may attend.
"""

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.fast.caches import DecoderState, LayerCache
from model.fast.folded import FoldedAttention
from model.fast.stepping import step_weights, without_autocast
from model.parts.dropout import Dropout
from model.parts.embedding import Embedding
from model.parts.masks import blocking_bias
from model.parts.positions import POSITIONAL
from model.stack import DecoderLayer, EncoderLayer, final_norm
from model.sublayers.attention import KERNELS, Attention


class Stack(nn.Module):
    """Common part of encoder and decoder: positions and dropout, then the layers, then a LayerNorm for pre-norm."""

    def __init__(self, config: ModelConfig, layer: type[nn.Module]) -> None:
        super().__init__()
        self.positions = POSITIONAL[config.positions](config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.num_layers))
        self.final_norm = final_norm(config)


class Encoder(Stack):
    """Embedded source (B, S, D) → memory (B, S, D)."""

    def forward(self, x_BSD: Tensor, source_bias: Tensor | None) -> Tensor:
        x_BSD = self.dropout(self.positions(x_BSD))
        for layer in self.layers:
            x_BSD = layer(x_BSD, source_bias)
        memory_BSD: Tensor = self.final_norm(x_BSD)
        return memory_BSD


class Decoder(Stack):
    """Embedded target (B, T, D) and memory (B, S, D) → hidden states (B, T, D)."""

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, source_bias: Tensor | None) -> Tensor:
        x_BTD = self.dropout(self.positions(x_BTD))
        for layer in self.layers:
            x_BTD = layer(x_BTD, memory_BSD, source_bias)
        hidden_BTD: Tensor = self.final_norm(x_BTD)
        return hidden_BTD


class Transformer(nn.Module):
    """Maps pieces to hidden states; `logits` maps those to scores of the next piece.

    factory.build_model builds it and draws the weights. With a shared vocabulary one matrix serves source, target and
    softmax; otherwise target and softmax share one. It is registered once, so a state_dict contains it once.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size  # of the target, and of the source unless source_vocab_size is given
        self._roles = ("shared", "shared") if config.shared_vocabulary else ("source", "target")
        sizes = {"source": source_vocab_size or vocab_size, "target": vocab_size, "shared": vocab_size}
        self.embeddings = nn.ModuleDict({r: Embedding(sizes[r], config.d_model) for r in sorted(set(self._roles))})
        self.encoder = Encoder(config, EncoderLayer)
        self.decoder = Decoder(config, DecoderLayer)

    @property
    def source_embedding(self) -> Embedding:
        """The embedding of source pieces; the target's if the vocabulary is shared."""
        return self._embedding(self._roles[0])

    @property
    def target_embedding(self) -> Embedding:
        """The embedding of target pieces, also the softmax's matrix."""
        return self._embedding(self._roles[1])

    def _embedding(self, role: str) -> Embedding:
        embedding = self.embeddings[role]
        assert isinstance(embedding, Embedding)
        return embedding

    @property
    def output_weight(self) -> nn.Parameter:
        """The softmax's matrix (rows, D); rows beyond vocab_size are padding."""
        return self.target_embedding.weight

    def forward(self, source_BS: Tensor, source_mask_BS: Tensor | None, target_BT: Tensor) -> Tensor:
        """Hidden states (B, T, D) under teacher forcing: position t predicts piece t + 1.

        source_BS, target_BT: piece ids; source_mask_BS: see `encode`.
        """
        return self.decode(target_BT, self.encode(source_BS, source_mask_BS), source_mask_BS)

    def encode(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """Memory (B, S, D). The mask is False at padding; None means no padding, and is faster."""
        x_BSD = self.source_embedding(source_BS)
        memory_BSD: Tensor = self.encoder(x_BSD, _source_bias(source_mask_BS, x_BSD.dtype))
        return memory_BSD

    def decode(self, target_BT: Tensor, memory_BSD: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) of target_BT, which starts with BOS. Causality hides padding at its end."""
        x_BTD = self.target_embedding(target_BT)
        hidden_BTD: Tensor = self.decoder(x_BTD, memory_BSD, _source_bias(source_mask_BS, x_BTD.dtype))
        return hidden_BTD

    def logits(self, hidden_D: Tensor) -> Tensor:
        """(…, D) → (…, W), W = vocab_size. In training, call it only for real target positions."""
        return self.target_embedding.logits(hidden_D)

    def start_decoding(
        self, memory_BSD: Tensor, source_mask_BS: Tensor | None, beam_size: int, max_steps: int
    ) -> DecoderState:
        """Caches for up to max_steps calls of `decode_step`. Call it under torch.inference_mode(), in eval mode.

        Raises ValueError if a table of learned positions has fewer than max_steps rows.
        """
        weights = step_weights(self, self.decoder.layers, self.output_weight[: self.vocab_size], self.config)
        dtype = weights.attention_dtype
        folds = source_mask_BS is None and weights.folds(*memory_BSD.shape[:2])
        caches = []
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            attention = layer.cross_attention
            cache = LayerCache.start(*attention.keys_values(memory_BSD), beam_size, max_steps, dtype)
            if folds:
                cache.folded = FoldedAttention(attention, cache.memory_keys[0], cache.memory_values[0])
            caches.append(cache)
        # Too many steps for a learned table are refused here, before the search begins.
        positions_TD = self.decoder.positions(memory_BSD.new_zeros(1, max_steps, memory_BSD.shape[2]))[0]
        bias = _source_bias(source_mask_BS, dtype)
        return DecoderState(weights, caches, bias, positions_TD, beam_size)

    def decode_step(self, tokens_BK: Tensor, state: DecoderState, visible_BKTK: Tensor | None = None) -> Tensor:
        """Hidden states (B, K, D) after reading one more piece per beam at time t = state.step; increments state.step.

        visible_BKTK: bool (B, K, t + 1, K), True for the (time, beam) slots of each beam's own past, including its own
        slot (t, k); optional for a single beam. Raises ValueError for another shape, and beyond max_steps.
        """
        if state.step >= state.max_steps:
            raise ValueError(f"step {state.step} of a search that was started with max_steps = {state.max_steps}")
        bias = state.ancestor_bias(visible_BKTK)
        x_RD = self.target_embedding.at(tokens_BK.flatten(), state.positions_TD[state.step])
        with without_autocast(x_RD.device):
            hidden_RD: Tensor = self.decoder.final_norm(state.weights.step(x_RD, state, bias))
        state.step += 1
        return hidden_RD.view(*tokens_BK.shape, -1)

    def next_logits(self, hidden_BKD: Tensor, state: DecoderState) -> Tensor:
        """`logits` for the result of `decode_step`: (B, K, D) → (B, K, W)."""
        with without_autocast(hidden_BKD.device):
            logits_RW = state.weights.output(hidden_BKD.flatten(0, 1))
        return logits_RW.view(*hidden_BKD.shape[:2], -1)

    def set_attention_kernel(self, name: str) -> None:
        """Choose a kernel of attention.KERNELS for equation 1; "auto" (the default) chooses by device.

        Raises ValueError for an unknown name.
        """
        if name not in (known := ["auto", *KERNELS]):
            raise ValueError(f"no attention kernel {name!r}; there are: {', '.join(known)}")
        for module in self.modules():
            if isinstance(module, Attention):
                module.kernel = name


def _source_bias(source_mask_BS: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(B, 1, 1, S), the same for every head and query."""
    return None if source_mask_BS is None else blocking_bias(source_mask_BS[:, None, None, :], dtype)
