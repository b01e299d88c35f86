"""Create environments for the toolkits that the benchmarks compare with: `python -m benchmarks.setup_peers DIR`.

Each toolkit has a separate environment, so that no toolkit changes another one's torch. All use this project's version
of torch.
"""

import argparse
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

TORCH = f"torch=={metadata.version('torch').partition('+')[0]}"
SOCKEYE_NEEDS = ("numpy<2", "portalocker", "sacrebleu", "pyyaml", "regex", "tabulate", "colorama", "lxml")
EOLE_NEEDS = (
    *("numpy", "pyyaml", "pydantic", "configargparse", "safetensors", "sentencepiece", "six", "sacrebleu", "rich"),
    *("huggingface_hub", "torch-optimi", "pyonmttok"),
)
JOEYNMT_NEEDS = (
    *("numpy", "pyyaml", "packaging", "sacrebleu", "importlib_metadata", "tensorboard", "setuptools<81"),
    *("matplotlib", "sentencepiece", "subword-nmt", "sacremoses", "datasets", "pandas", "tqdm"),
)
OPENNMT_NEEDS = (
    *("numpy", "pyyaml", "configargparse", "sentencepiece", "six", "sacrebleu", "pyonmttok", "tensorboard"),
    *("flask", "waitress", "fasttext-wheel", "rapidfuzz", "spacy", "pyahocorasick"),
)
FAIRSEQ_NEEDS = (
    *("numpy", "cython", "setuptools", "wheel", "sacrebleu", "regex", "bitarray", "cffi", "tqdm", "tensorboardX"),
    *("hydra-core", "omegaconf", "scikit-learn"),
)
# Toolkits with --no-deps require an older torch or packages that training does not use. The *_NEEDS list the rest.
RECIPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "ct2": (("ctranslate2==4.8.5", "numpy"),),
    "hf": ((TORCH, "transformers==5.23.0", "sentencepiece"),),
    "sockeye": ((TORCH, *SOCKEYE_NEEDS), ("--no-deps", "sockeye==3.1.34")),
    "eole": ((TORCH, *EOLE_NEEDS), ("--no-deps", "eole==0.6.4")),
    "joeynmt": ((TORCH, *JOEYNMT_NEEDS), ("--no-deps", "joeynmt==2.3.0")),
    "opennmt": ((TORCH, *OPENNMT_NEEDS), ("--no-deps", "OpenNMT-py==3.5.1")),
    # fairseq-fixed is fairseq 0.12.2 for Python 3.11. It builds its extensions against the torch of its environment.
    "fairseq": ((TORCH, *FAIRSEQ_NEEDS), ("--no-deps", "--no-build-isolation", "fairseq-fixed==0.12.3.1")),
    "hydra": (("hydra-core==1.3.8", "hydra-joblib-launcher==1.2.0"),),
    "ray": (("ray[tune]==2.60.0",),),
    "optuna": (("optuna==5.0.0",),),
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, metavar="DIR")
    root = options.parse_args().folder.absolute()
    for name, installs in RECIPES.items():
        venv.create(root / name, with_pip=True)
        for packages in installs:
            print(f"{name}: {' '.join(packages)}", flush=True)
            subprocess.run([root / name / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
