"""A plain reading of exported folders: the architectures and tokenizers of Hugging Face, from their descriptions.

It imports no code of ours. Shapes: T positions, D width, H heads.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

ACT = {
    "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "sigmoid": torch.sigmoid, "linear": lambda x: x,
    "relu2": lambda x: F.relu(x) ** 2,
}  # fmt: skip


class Reader:
    """`logits(ids)` of a folder."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")

    def logits(self, ids: list[int]) -> torch.Tensor:
        return {"gpt2": self._gpt, "openai-gpt": self._gpt, "gpt_neox": self._neox}.get(
            self.config["model_type"], self._llama
        )(torch.tensor(ids))

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _conv1d(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        eps = self.config.get("layer_norm_epsilon", self.config.get("layer_norm_eps"))
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], eps)

    def _rms(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt() * self.weights[name]

    def _gpt(self, ids: torch.Tensor) -> torch.Tensor:
        c, post = self.config, self.config["model_type"] == "openai-gpt"
        token, place = ("tokens_embed", "positions_embed") if post else ("wte", "wpe")
        embedding = self.weights[f"transformer.{token}.weight"]
        x = embedding[ids] + self.weights[f"transformer.{place}.weight"][: len(ids)]
        act = ACT[c["afn" if post else "activation_function"]]
        for i in range(c["n_layer"]):
            at = f"transformer.h.{i}"

            def attention(x: torch.Tensor, at: str = at) -> torch.Tensor:
                q, k, v = (heads(part, c["n_head"]) for part in self._conv1d(f"{at}.attn.c_attn", x).chunk(3, -1))
                return self._conv1d(f"{at}.attn.c_proj", attend(q, k, v))

            def inner(x: torch.Tensor, at: str = at) -> torch.Tensor:
                return self._conv1d(f"{at}.mlp.c_proj", act(self._conv1d(f"{at}.mlp.c_fc", x)))

            for f, norm in ((attention, f"{at}.ln_1"), (inner, f"{at}.ln_2")):
                x = self._layer_norm(norm, x + f(x)) if post else x + f(self._layer_norm(norm, x))
        x = x if post else self._layer_norm("transformer.ln_f", x)
        return x @ (embedding if c["tie_word_embeddings"] else self.weights["lm_head.weight"]).T

    def _neox(self, ids: torch.Tensor) -> torch.Tensor:
        c = self.config
        embedding = self.weights["gpt_neox.embed_in.weight"]
        x, count = embedding[ids], c["num_attention_heads"]
        turned = round(c["hidden_size"] // count * c["rotary_pct"])
        for i in range(c["num_hidden_layers"]):
            at = f"gpt_neox.layers.{i}"
            fused = self._linear(f"{at}.attention.query_key_value", self._layer_norm(f"{at}.input_layernorm", x))
            q, k, v = heads(fused, count).chunk(3, -1)
            q, k = rotate(q, turned), rotate(k, turned)
            x = x + self._linear(f"{at}.attention.dense", attend(q, k, v))
            inner = self._linear(f"{at}.mlp.dense_h_to_4h", self._layer_norm(f"{at}.post_attention_layernorm", x))
            x = x + self._linear(f"{at}.mlp.dense_4h_to_h", ACT[c["hidden_act"]](inner))
        x = self._layer_norm("gpt_neox.final_layer_norm", x)
        return x @ (embedding if c["tie_word_embeddings"] else self.weights["embed_out.weight"]).T

    def _llama(self, ids: torch.Tensor) -> torch.Tensor:
        c = self.config
        embedding = self.weights["model.embed_tokens.weight"]
        x, repeats = embedding[ids], c["num_attention_heads"] // c["num_key_value_heads"]
        for i in range(c["num_hidden_layers"]):
            at = f"model.layers.{i}"
            y = self._rms(f"{at}.input_layernorm.weight", x)
            q, k, v = (
                heads(self._linear(f"{at}.self_attn.{n}_proj", y), c[f"num_{kind}_heads"])
                for n, kind in (("q", "attention"), ("k", "key_value"), ("v", "key_value"))
            )
            if c["model_type"] == "qwen3":
                q, k = self._rms(f"{at}.self_attn.q_norm.weight", q), self._rms(f"{at}.self_attn.k_norm.weight", k)
            q, k = rotate(q, c["head_dim"]), rotate(k, c["head_dim"])
            k, v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
            x = x + self._linear(f"{at}.self_attn.o_proj", attend(q, k, v))
            y = self._rms(f"{at}.post_attention_layernorm.weight", x)
            gated = ACT[c["hidden_act"]](self._linear(f"{at}.mlp.gate_proj", y)) * self._linear(f"{at}.mlp.up_proj", y)
            x = x + self._linear(f"{at}.mlp.down_proj", gated)
        x = self._rms("model.norm.weight", x)
        return x @ (embedding if c["tie_word_embeddings"] else self.weights["lm_head.weight"]).T


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """(T, H·n) → (H, T, n)."""
    return x.unflatten(-1, (count, -1)).transpose(0, 1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(0, 1).flatten(1)


def rotate(x: torch.Tensor, width: int) -> torch.Tensor:
    """Element i is turned with i + width / 2."""
    angle = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    a, b = x[..., : width // 2], x[..., width // 2 : width]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., width:]], -1)


class Pieces:
    """`encode(text)` of a tokenizer.json: BPE with merges, byte-level or not, or unigrams."""

    def __init__(self, folder: Path) -> None:
        self.json = json.loads((folder / "tokenizer.json").read_text())
        model = self.json["model"]
        self.kind = model["type"]
        pieces = model["vocab"]
        self.ids = pieces if self.kind == "BPE" else {piece: i for i, (piece, _) in enumerate(pieces)}
        self.scores = {} if self.kind == "BPE" else dict(pieces)
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model.get("merges", []))}
        self.added = {one["content"]: one["id"] for one in self.json["added_tokens"]}

    def encode(self, text: str) -> list[int]:
        found = []
        for part in re.split("(" + "|".join(map(re.escape, self.added)) + ")", text):
            if part in self.added:
                found.append(self.added[part])
            elif self.json["pre_tokenizer"]:
                found += [self.ids[gpt2_character(byte)] for byte in part.encode()]
            else:
                part = part.replace(" ", self.json["normalizer"]["content"])
                for piece in self._joined(list(part)) if self.kind == "BPE" else self._best(part):
                    spelt = [f"<0x{byte:02X}>" for byte in piece.encode()]
                    found += [self.ids[p] for p in ([piece] if piece in self.ids else spelt)]
        return found

    def _joined(self, pieces: list[str]) -> list[str]:
        while pairs := [(self.ranks[p], i) for i, p in enumerate(pairwise(pieces)) if p in self.ranks]:
            _, i = min(pairs)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return pieces

    def _best(self, text: str) -> list[str]:
        """The most probable pieces (Viterbi); a character that is none costs 10 more than the worst of them."""
        unknown = min(score for score in self.scores.values() if score > -1e5) - 10
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for end in range(1, len(text) + 1):
            ways = []
            for start in range(end):
                piece = text[start:end]
                if piece in self.scores or end - start == 1:
                    score, so_far = best[start]
                    ways.append((score + self.scores.get(piece, unknown), [*so_far, piece]))
            best.append(max(ways, key=lambda way: way[0]))
        return best[-1][1]


def gpt2_character(byte: int) -> str:
    """GPT-2's character for a byte (its encoder.py)."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return chr(byte if byte in printed else 256 + sum(b not in printed for b in range(byte)))
