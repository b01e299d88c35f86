"""Corpora of a bundle as Croissant (docs.mlcommons.org/croissant), from what runs recorded of them.

A bundle has no corpus. Its runs recorded digests, which name the content, and counts: these are described.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ablations.plan.planned import Plan
from experiments.identity import without_runs
from experiments.store.layout import Store
from experiments.store.results import TrainingResult

CROISSANT = "http://mlcommons.org/croissant/1.0"
_DIGEST = re.compile(r"[0-9a-f]{16}")
# The context that the specification prescribes.
_TERMS = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS},
}


@dataclass(frozen=True)
class Dataset:
    """A corpus, or one set of it, as runs name it."""

    digest: str  # of its content, by which runs and evaluations are named
    name: str
    about: str

    @property
    def path(self) -> str:
        """Where its description lies in a crate."""
        return f"datasets/{self.digest}.json"

    def croissant(self, date: str) -> dict[str, Any]:
        """The description; `date` is that of the crate."""
        return {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "conformsTo": CROISSANT,
            "name": self.name,
            "description": self.about,
            "identifier": self.digest,
            "datePublished": date,
        }


def datasets(plan: Plan, store: Store) -> dict[str, Dataset]:
    """Digest → corpus or set, in the plan's order; inputs whose names are no digests are left out."""
    found: dict[str, Dataset] = {}
    for run in plan.trainings:
        record = store.result(run.run_id) or TrainingResult()
        for what, digest in without_runs(run.inputs).items():
            if _DIGEST.fullmatch(digest):
                found.setdefault(
                    digest, Dataset(digest, _name(record, what), " ".join(_training(record, what, digest)))
                )
        for evaluation in run.evaluations:
            made = store.evaluation(run.run_id, evaluation.eval_id)
            sentences = made.sentences if made else None
            for digest in evaluation.spec.inputs.values():
                if _DIGEST.fullmatch(digest):
                    counted = f" It has {sentences:,} examples." if sentences is not None else ""
                    about = f"The set {evaluation.spec.set}, which runs were scored on.{counted} {_named(digest)}"
                    found.setdefault(digest, Dataset(digest, f"{_name(record, 'data')}: {evaluation.spec.set}", about))
    return found


def _name(record: TrainingResult, what: str) -> str:
    """The corpus's name as recorded: a folder's name, "builtin", an algorithm; else what the run calls its input."""
    data: Mapping[str, Any] = (record.config or {}).get("data") or {}
    name = data.get("algorithm") or data.get("corpus") if isinstance(data, Mapping) else None
    return str(name).rstrip("/").rpartition("/")[2] if name else what


def _training(record: TrainingResult, what: str, digest: str) -> Iterator[str]:
    sides, train = record.data.corpus, record.data.train
    yield f"Input of trainings ({what})."
    if sides.source and sides.target:
        yield f"From {sides.source} to {sides.target}."
    if train.kept is not None:
        yield f"{train.kept:,} training examples were kept."
    if train.bytes is not None:
        yield f"{train.bytes:,} bytes of training text."
    yield _named(digest)


def _named(digest: str) -> str:
    return f"The corpus is not in this crate; the digest {digest} of its content names it in the runs' identities."
