"""An ensemble of networks: the probability of the next piece is the mean of the members' probabilities.

Shapes: M members, B sentences, S source, T target, K beams, D sum of the members' widths, W vocabulary.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from model.protocol import Network, SearchState


class EnsembleState:
    """The search states of all members."""

    def __init__(self, states: Sequence[SearchState]) -> None:
        self.states = list(states)
        self.step = 0  # index of the next position

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the sentences with these indices, in this order."""
        for state in self.states:
            state.keep(sentences)

    def attention(self) -> Tensor:
        """Return the members' mean attention (SearchState.attention)."""
        return torch.stack([state.attention() for state in self.states]).mean(0)


class Ensemble(Network):
    """An ensemble of trained networks with one vocabulary. It can be used for search and scoring, but not for training.

    The memories and the hidden states of the members are concatenated along the last axis. `logits` returns the log of
    the mean probability, so the softmax of the logits is the mean probability. For a single member, `logits` returns
    the logits of this member. The constructor raises ValueError if the vocabularies have different sizes.
    """

    def __init__(self, members: Sequence[Network]) -> None:
        super().__init__()
        sizes = sorted({member.vocab_size for member in members})
        if len(sizes) != 1:
            raise ValueError(f"members of an ensemble need one vocabulary, these have {sizes} pieces")
        self.members = nn.ModuleList(members)
        self.config, self.vocab_size = members[0].config, sizes[0]
        self._memory_widths = [member.config.d_model for member in members]
        self._hidden_widths = [member.output_weight.shape[1] for member in members]

    def _each(self) -> Iterator[Network]:
        for member in self.members:
            assert isinstance(member, Network)
            yield member

    @property
    def output_weight(self) -> Tensor:
        raise NotImplementedError("an ensemble is not trained: it has no single output matrix")

    @property
    def longest(self) -> int | None:
        return min((limit for member in self._each() if (limit := member.longest) is not None), default=None)

    def layers(self) -> Iterator[nn.Module]:
        for member in self._each():
            yield from member.layers()

    def encode(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        return torch.cat([member.encode(source_BS, source_mask_BS) for member in self._each()], dim=-1)

    def decode(self, target_BT: Tensor, memory_BSD: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        pairs = zip(self._each(), self._memories(memory_BSD), strict=True)
        return torch.cat([member.decode(target_BT, own_BSD, source_mask_BS) for member, own_BSD in pairs], dim=-1)

    def logits(self, hidden_D: Tensor) -> Tensor:
        pairs = zip(self._each(), self._hiddens(hidden_D), strict=True)
        return mean_of_probabilities([member.logits(own_D) for member, own_D in pairs])

    def start_decoding(
        self, memory_BSD: Tensor, source_mask_BS: Tensor | None, beam_size: int, max_steps: int, attends: bool = False
    ) -> EnsembleState:
        pairs = zip(self._each(), self._memories(memory_BSD), strict=True)
        shape = (source_mask_BS, beam_size, max_steps, attends)
        return EnsembleState([member.start_decoding(own_BSD, *shape) for member, own_BSD in pairs])

    def decode_step(self, tokens_BK: Tensor, state: SearchState, visible_BKTK: Tensor | None = None) -> Tensor:
        assert isinstance(state, EnsembleState)
        pairs = zip(self._each(), state.states, strict=True)
        state.step += 1
        return torch.cat([member.decode_step(tokens_BK, own, visible_BKTK) for member, own in pairs], dim=-1)

    def next_logits(self, hidden_BKD: Tensor, state: SearchState) -> Tensor:
        assert isinstance(state, EnsembleState)
        members = zip(self._each(), self._hiddens(hidden_BKD), state.states, strict=True)
        return mean_of_probabilities([member.next_logits(own_BKD, own) for member, own_BKD, own in members])

    def _memories(self, memory_BSD: Tensor) -> list[Tensor]:
        return _parts(memory_BSD, self._memory_widths)

    def _hiddens(self, hidden_D: Tensor) -> list[Tensor]:
        return _parts(hidden_D, self._hidden_widths)


def _parts(x_D: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Split the last axis into one contiguous tensor per member."""
    return [part.contiguous() for part in torch.split(x_D, list(widths), dim=-1)]


def mean_of_probabilities(logits_MW: Sequence[Tensor]) -> Tensor:
    """Return log(mean of softmax(logits) over the members), (…, W), in fp32 or wider.

    With a single member, return its logits unchanged.
    """
    if len(logits_MW) == 1:
        return logits_MW[0]
    wide = torch.promote_types(logits_MW[0].dtype, torch.float32)
    log_prob_MW = torch.stack([logits_W.log_softmax(dim=-1, dtype=wide) for logits_W in logits_MW])
    return log_prob_MW.logsumexp(dim=0) - math.log(len(logits_MW))
