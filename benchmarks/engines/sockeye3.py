"""Sockeye 3: its traced beam search with cached keys and values, on random weights of the asked shapes."""

import measure
import sockeye
import torch
from sockeye import constants as C
from sockeye import data_io, transformer
from sockeye.beam_search import CandidateScorer, get_search_algorithm
from sockeye.encoder import EmbeddingConfig
from sockeye.model import ModelConfig, SockeyeModel

job = measure.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
sizes = job["model"]
D, V = sizes["d_model"], sizes["vocab_size"]
stack = transformer.TransformerConfig(
    model_size=D,
    attention_heads=sizes["num_heads"],
    feed_forward_num_hidden=sizes["d_ff"],
    act_type="relu",
    num_layers=sizes["num_layers"],
    dropout_attention=0.0,
    dropout_act=0.0,
    dropout_prepost=0.0,
    positional_embedding_type=C.FIXED_POSITIONAL_EMBEDDING,
    preprocess_sequence="",
    postprocess_sequence="rn",
    max_seq_len_source=256,
    max_seq_len_target=256,
    depth_key_value=D,
)
statistics = data_io.DataStatistics(
    *(0,) * 6,  # counts of a corpus that there is none of
    max_observed_len_source=256,
    max_observed_len_target=256,
    size_vocab_source=V,
    size_vocab_target=V,
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
        vocab_source_size=V,
        vocab_target_size=V,
        config_embed_source=EmbeddingConfig(V, D, 0.0),
        config_embed_target=EmbeddingConfig(V, D, 0.0),
        config_encoder=stack,
        config_decoder=stack,
    ),
    inference_only=True,
)
for parameter in model.parameters():
    if parameter.dim() > 1:
        torch.nn.init.normal_(parameter, std=D**-0.5)
with torch.no_grad():
    model.output_layer.bias.zero_()
    model.output_layer.bias[C.EOS_ID] = -1e9  # nothing ends early
model.eval()
search = get_search_algorithm(
    models=[model],
    beam_size=job["beam"],
    device=torch.device("cpu"),
    output_scores=True,
    scorer=CandidateScorer(0.6, 5.0, 0.0),
)
batches = []
for batch in measure.batches(job):
    longest = max(map(len, batch)) + 1
    rows = [[*sentence, C.EOS_ID, *[C.PAD_ID] * (longest - len(sentence) - 1)] for sentence in batch]
    lengths = torch.tensor([[len(sentence) + 1, 0] for sentence in batch], dtype=torch.int32)
    limit = torch.full((len(batch),), measure.steps(batch, job), dtype=torch.int32)
    batches.append((torch.tensor(rows, dtype=torch.int32).unsqueeze(-1), lengths, limit))


def decode() -> int:
    pieces = 0
    with torch.inference_mode():
        for ids, lengths, limit in batches:
            found = search(ids, lengths, None, limit)
            assert found.best_word_indices.shape[-1] >= int(limit[0])
            pieces += int(limit.sum())
    return pieces


measure.report(job, decode, f"sockeye {sockeye.__version__}, torch {torch.__version__}")
