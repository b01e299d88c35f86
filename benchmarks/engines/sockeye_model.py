"""Build a SockeyeModel with the job's sizes and random weights, for training and for search."""

from typing import Any

import torch
from sockeye import constants as C
from sockeye import data_io, transformer
from sockeye.encoder import EmbeddingConfig
from sockeye.model import ModelConfig, SockeyeModel


def build(sizes: dict[str, Any], *, inference_only: bool, dropout: float = 0.0) -> SockeyeModel:
    width, vocabulary = sizes["d_model"], sizes["vocab_size"]
    stack = transformer.TransformerConfig(
        model_size=width,
        attention_heads=sizes["num_heads"],
        feed_forward_num_hidden=sizes["d_ff"],
        act_type="relu",
        num_layers=sizes["num_layers"],
        dropout_attention=0.0,
        dropout_act=0.0,
        dropout_prepost=dropout,
        positional_embedding_type=C.FIXED_POSITIONAL_EMBEDDING,
        preprocess_sequence="",
        postprocess_sequence="drn" if dropout else "rn",
        max_seq_len_source=256,
        max_seq_len_target=256,
        depth_key_value=width,
    )
    statistics = data_io.DataStatistics(
        *(0,) * 6,  # counts of the corpus, which this benchmark does not have
        max_observed_len_source=256,
        max_observed_len_target=256,
        size_vocab_source=vocabulary,
        size_vocab_target=vocabulary,
        length_ratio_mean=1.0,
        length_ratio_std=0.1,
        buckets=[(256, 256)],
        num_sents_per_bucket=[1],
        average_len_target_per_bucket=[1.0],
        length_ratio_stats_per_bucket=[(1.0, 0.1)],
    )
    model = SockeyeModel(
        ModelConfig(
            config_data=data_io.DataConfig(statistics, 256, 256, 1, 1),
            vocab_source_size=vocabulary,
            vocab_target_size=vocabulary,
            config_embed_source=EmbeddingConfig(vocabulary, width, dropout),
            config_embed_target=EmbeddingConfig(vocabulary, width, dropout),
            config_encoder=stack,
            config_decoder=stack,
        ),
        inference_only=inference_only,
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=width**-0.5)
    return model
