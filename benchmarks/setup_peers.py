"""Environments for the toolkits that benchmarks.decoding compares with: `python -m benchmarks.setup_peers DIR`.

Each gets its own, so that none pulls another torch; torch is the version that this project is measured with.
"""

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

TORCH = f"torch=={metadata.version('torch').partition('+')[0]}"
SOCKEYE_NEEDS = ("numpy<2", "portalocker", "sacrebleu", "pyyaml", "regex", "tabulate", "colorama", "lxml")
JOEY_NEEDS = (
    "numpy", "importlib_metadata", "matplotlib", "packaging", "pyyaml", "sentencepiece", "setuptools<81", "subword-nmt",
    "tensorboard", "tqdm",
)  # fmt: skip
# Sockeye asks for an older torch and Joey NMT for much that a search does without; both run with ours, so what they
# need is named here instead.
RECIPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ct2": (("ctranslate2==4.8.5", "numpy"),),
    "hf": ((TORCH, "transformers==5.23.0", "sentencepiece"),),
    "joeynmt": ((TORCH, *JOEY_NEEDS), ("--no-deps", "joeynmt==2.3.0")),
    "sockeye": ((TORCH, *SOCKEYE_NEEDS), ("--no-deps", "sockeye==3.1.34")),
}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    root = Path(sys.argv[1]).absolute()
    for name, installs in RECIPES.items():
        venv.create(root / name, with_pip=True)
        for packages in installs:
            print(f"{name}: {' '.join(packages)}", flush=True)
            subprocess.run([root / name / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
