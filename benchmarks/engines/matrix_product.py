"""Measure the speed of a 2048³ matrix product in the job's precision, in operations per second."""

import serve
import torch

job = serve.job()
torch.set_num_threads(job["threads"])
SIZE, REPEATS = 2048, 4
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[job["precision"]]
left, right = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
rounds = serve.Rounds(1, REPEATS * 2 * SIZE**3, version=f"torch {torch.__version__}")
while True:
    for _ in range(REPEATS):
        left @ right
    if rounds.step_done():
        break
