"""A plain script of a user, configured with Hydra."""

import json
import random

import hydra


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    noise = random.Random(f"{cfg.seed}")
    weight = 0.0
    for _ in range(cfg.steps):
        x = noise.gauss(0, 1)
        weight -= cfg.optimizer.rate * (weight - 3 + noise.gauss(0, 1)) * (x * x if cfg.optimizer.scaled else 1)
    print(json.dumps({"error": abs(weight - 3)}))


if __name__ == "__main__":
    main()
