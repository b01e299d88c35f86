"""Change the content of a bundle, with a manifest that agrees."""

import hashlib
import io
import json
import tarfile

from experiments.store.checksummed import with_checksum


def contents(path):
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def altered(path, target, change):
    """The bundle changed by `change(head, files)`, with a manifest that agrees."""
    files = contents(path)
    head = json.loads(files.pop("bundle.json"))
    for name in ("record_sha256", "record_format"):
        head.pop(name, None)
    change(head, files)
    for name, data in files.items():
        head["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    with tarfile.open(target, "w:gz") as archive:
        for name, data in {"bundle.json": json.dumps(with_checksum(head)).encode(), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return target
