"""Other programs that train in the same process: torch.nn.Transformer, Hugging Face's Marian, nanoGPT.

The first two train on the same batches as our program; nanoGPT trains on random pieces. Each runs as an expert user
would run it: bf16 autocast, torch's default attention kernels, masks without copies, fused Adam.
`torch.nn.Transformer` computes the logits of real pieces only, as our program does. Marian needs the package
transformers. nanoGPT needs the path of its file model.py, which is imported and never copied.

Shapes: B sentences, S source, T target, D d_model, W vocabulary.
"""

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.marian import LONGEST, marian_config
from benchmarks.gpu.turns import Turn
from experiments.data.collate import Batch
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from experiments.training.loss import real_places
from model.config import ModelConfig

SMOOTHING, DROPOUT = 0.1, 0.1
Step = Callable[[Any], Tensor]  # input of a step → loss
Batches = Callable[[int], Sequence[Batch[Tensor]]]
Counts = tuple[int, int, int]


class Transformer(nn.Module):
    """torch.nn.Transformer with tied embeddings and sinusoids.

    The decoder's self-attention has only a causal mask, because padding is at the end.
    """

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        width = config.d_model
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        position_T1 = torch.arange(LONGEST).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table_TD = torch.stack(((position_T1 * rate).sin(), (position_T1 * rate).cos()), -1).flatten(1)
        self.register_buffer("positions", table_TD, persistent=False)
        self.dropout, self.scale = nn.Dropout(DROPOUT), math.sqrt(width)
        layers, heads = config.num_layers, config.num_heads
        self.layers = nn.Transformer(width, heads, layers, layers, config.d_ff, DROPOUT, batch_first=True)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # the paper and the other contestants have no dropout on attention weights

    def embed(self, pieces_BT: Tensor) -> Tensor:
        """Embed pieces and add their positions: (B, T) → (B, T, D)."""
        embedded: Tensor = self.dropout(self.embedding(pieces_BT) * self.scale + self.positions[: pieces_BT.shape[1]])
        return embedded

    def forward(self, source_BS: Tensor, target_BT: Tensor, padding_BS: Tensor, causal_TT: Tensor) -> Tensor:
        """Return hidden states (B, T, D). The masks contain 0 or -inf."""
        memory_BSD = self.layers.encoder(self.embed(source_BS), src_key_padding_mask=padding_BS)
        hidden_BTD: Tensor = self.layers.decoder(
            self.embed(target_BT),
            memory_BSD,
            tgt_mask=causal_TT,
            memory_key_padding_mask=padding_BS,
            tgt_is_causal=True,
        )
        return hidden_BTD


def torch_step(config: ModelConfig, vocabulary: int, device: Device) -> Step:
    """Return a function that makes one update of torch.nn.Transformer on a step's micro-batches."""
    at = device.torch_device
    network = Transformer(config, vocabulary).to(at).train()

    def loss(part: Batch[Tensor]) -> Tensor:
        source, read, predicted = _moved(part, device)
        padding = torch.zeros(source.shape, device=at).masked_fill(source == PAD_ID, float("-inf"))
        causal = torch.full((read.shape[1], read.shape[1]), float("-inf"), device=at).triu(1)
        real = device.move(cast(Tensor, part.real))
        logits = F.linear(network(source, read, padding, causal).flatten(0, 1)[real], network.embedding.weight)
        labels = predicted.flatten()[real]
        return F.cross_entropy(logits.float(), labels, label_smoothing=SMOOTHING, reduction="sum")

    return _updating(network, loss, device)


def marian_step(config: ModelConfig, vocabulary: int, device: Device) -> Step:
    """Return a function that makes one update of Hugging Face's MarianMTModel on a step's micro-batches."""
    from transformers import MarianMTModel

    network = MarianMTModel(marian_config(config, vocabulary, DROPOUT)).to(device.torch_device).train()

    def loss(part: Batch[Tensor]) -> Tensor:
        source, read, predicted = _moved(part, device)
        mask = (source != PAD_ID).long()
        found = network(input_ids=source, attention_mask=mask, decoder_input_ids=read, use_cache=False)
        logits, labels = found.logits.flatten(0, 1), predicted.flatten()
        return F.cross_entropy(logits, labels, ignore_index=PAD_ID, label_smoothing=SMOOTHING, reduction="sum")

    return _updating(network, loss, device)


def _updating(network: nn.Module, loss_of: Callable[[Batch[Tensor]], Tensor], device: Device) -> Step:
    """Return a function that makes one update of `network` on a step's micro-batches.

    loss_of: returns the summed loss of a micro-batch; it is called under autocast.
    """
    optimizer = _adam(network)

    def step(parts: Sequence[Batch[Tensor]]) -> Tensor:
        tokens, total = sum(part.num_target_tokens for part in parts), torch.zeros((), device=device.torch_device)
        for part in parts:
            with device.autocast():
                loss = loss_of(part) / tokens
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


@dataclass(frozen=True)
class NanoGPT:
    """nanoGPT, compiled, with the settings of its train_gpt2.py. `file` is its model.py."""

    file: Path
    tiny: bool

    @property
    def sizes(self) -> dict[str, int]:
        """The arguments of nanoGPT's GPTConfig."""
        if self.tiny:
            return {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 64, "vocab_size": 512}
        return {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304}

    @property
    def shape(self) -> tuple[int, int]:
        """The number of micro-batches per step, and of windows per micro-batch."""
        return (2, 2) if self.tiny else (40, 12)

    @property
    def tokens(self) -> int:
        """The number of tokens per step."""
        parts, rows = self.shape
        return parts * rows * self.sizes["block_size"]

    def step(self, device: Device) -> Step:
        """Return a function that makes one update on random pieces. The speed does not depend on the pieces."""
        spec = importlib.util.spec_from_file_location("nanogpt_model", self.file)
        if spec is None or spec.loader is None:
            raise ValueError(f"{self.file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        (parts, rows), sizes, at = self.shape, self.sizes, device.torch_device
        network = module.GPT(module.GPTConfig(dropout=0.0, bias=False, **sizes)).to(at)
        optimizer = network.configure_optimizers(0.1, 6e-4, (0.9, 0.95), at.type)
        compiled = torch.compile(network)

        def step(_: Any) -> Tensor:
            total = torch.zeros((), device=at)
            for _ in range(parts):
                read, predicted = torch.randint(0, sizes["vocab_size"], (2, rows, sizes["block_size"]), device=at)
                with device.autocast():
                    _, loss = compiled(read, predicted)
                (loss / parts).backward()
                total += loss.detach() / parts
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return total

        return step


def contestant(make: Callable[[], Step], work: Callable[[], Iterable[Any]]) -> Callable[[Turn], None]:
    """Return a peer's training for `Turn`: it calls `make`, then does one step for each element of `work()`."""

    def train(turn: Turn) -> None:
        with _KernelsOfTorch() as kernels:
            step = make()
            for each in work():
                turn.loss = step(each)
                kernels.lent_for(turn.stop)

    return train


class Prepared:
    """The micro-batches of the first `last` steps, prepared before training.

    Rows and columns that contain only padding are removed.
    """

    def __init__(self, batches: Batches, last: int) -> None:
        self._batches, self._last = batches, last
        self.counts = dict[int, Counts]()  # step → counts

    def __call__(self) -> Iterator[Sequence[Batch[Tensor]]]:
        found = {step: self._batches(step) for step in range(1, self._last + 1)}
        self.counts |= {step: counts(parts) for step, parts in found.items()}
        return iter([[_tight(part) for part in parts] for parts in found.values()])


def counts(parts: Sequence[Batch[Tensor]]) -> Counts:
    """Return the number of target pieces, source pieces and pairs of a step."""
    return (
        sum(part.num_target_tokens for part in parts),
        sum(part.num_source_tokens for part in parts),
        sum(int((part.target_output != PAD_ID).any(1).sum()) for part in parts),  # a padded shape may add rows
    )


def _tight(part: Batch[Tensor]) -> Batch[Tensor]:
    """Return the same pairs in the smallest shape, because torch's attention returns NaN for rows of only padding."""
    rows = (part.source != PAD_ID).any(1)

    def cut(pieces: Tensor) -> Tensor:
        kept = pieces[rows]
        return kept[:, (kept != PAD_ID).any(0)].contiguous()

    predicted = cut(part.target_output)
    moved = cut(part.source), cut(part.target_input), predicted
    return Batch(*moved, part.num_source_tokens, part.num_target_tokens, real_places(predicted))


class _KernelsOfTorch:
    """Context with torch's default attention kernels and matrix precision, which experiments.device changes."""

    def __enter__(self) -> "_KernelsOfTorch":
        self._ours = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
        self._choose(True, "high")
        return self

    def __exit__(self, *_: object) -> None:
        self._choose(*self._ours)

    def lent_for(self, call: Callable[[], object]) -> None:
        """Call a function with our program's choice of kernels and precision."""
        self._choose(*self._ours)
        call()
        self._choose(True, "high")

    def _choose(self, cudnn: bool, precision: str) -> None:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        torch.set_float32_matmul_precision(precision)


def _adam(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=3e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


def _moved(part: Batch[Tensor], device: Device) -> tuple[Tensor, Tensor, Tensor]:
    return device.move(part.source), device.move(part.target_input), device.move(part.target_output)
