"""Decode with Sockeye 3's traced beam search, with cached keys and values and random weights."""

import measure
import sockeye
import torch
from sockeye import constants as C
from sockeye.beam_search import CandidateScorer, get_search_algorithm
from sockeye_model import build

job = measure.job()
torch.set_num_threads(job["threads"])
torch.manual_seed(1)
model = build(job["model"], inference_only=True)
with torch.no_grad():
    model.output_layer.bias.zero_()
    model.output_layer.bias[C.EOS_ID] = -1e9  # so that no output ends early
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
