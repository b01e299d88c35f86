"""A store's passphrase: raising a budget and unsealing a set need it. The owner sets it; programs need not know it.

`secret.json` has a salted scrypt digest of it. The ledger has the SHA-256 of that file, so that a removed or replaced
file is noticed. Imports no torch.
"""

import hashlib
import json
import os
import secrets

from experiments.errors import UserError
from experiments.store import ledger
from experiments.store.checksummed import describe_file, read_json, with_checksum
from experiments.store.durable import whole_file
from experiments.store.layout import Store

FILE = "secret.json"
SCRYPT = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 1 << 26}


def is_protected(store: Store) -> bool:
    """Whether a passphrase was set."""
    return bool(_recorded(store)) or (store.root / FILE).exists()


def set_secret(store: Store, passphrase: str) -> None:
    """Set the store's first passphrase. Raises UserError if there is one already, or for an empty one."""
    if is_protected(store):
        raise UserError("This store has a passphrase already.")
    if not passphrase:
        raise UserError("The passphrase is empty. Write one line of text.")
    salt = secrets.token_bytes(16)
    record = with_checksum({"salt": salt.hex(), "scrypt": _derived(passphrase, salt)})
    with whole_file(store.root / FILE, private=True) as file:
        file.write(json.dumps(record).encode())
    ledger.append(store, "protect", secret=describe_file(store.root / FILE)["sha256"])


def check_secret(store: Store, passphrase: str | None) -> None:
    """Raises UserError unless this is the store's passphrase, or it has none."""
    if not is_protected(store):
        return
    if passphrase is None:
        raise UserError("This store is protected: give its passphrase (--passphrase-file FILE, or at the prompt).")
    path, recorded = store.root / FILE, _recorded(store)
    if not os.access(path, os.R_OK) or describe_file(path)["sha256"] != recorded:
        raise UserError(
            f"{path} is not the file that this store's passphrase was set with: it was removed, replaced, or belongs "
            "to another user. Restore it from a backup, or run the command as its owner."
        )
    record = read_json(path) or {}
    if not secrets.compare_digest(_derived(passphrase, bytes.fromhex(record["salt"])), record["scrypt"]):
        raise UserError("That is not the passphrase of this store. Nothing was changed.")


def _recorded(store: Store) -> str:
    """The digest of the file when the passphrase was set, which the ledger has; "" if it never was."""
    return next((str(entry["secret"]) for entry in ledger.since(store, 0)[0] if entry["what"] == "protect"), "")


def _derived(passphrase: str, salt: bytes) -> str:
    return hashlib.scrypt(passphrase.encode(), salt=salt, **SCRYPT).hex()
