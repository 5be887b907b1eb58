"""The validation split of a source that has none: by a seeded hash of each document's text.

So a document stays where it is when others are added, and two copies of one text never fall on both
sides.
"""

import hashlib


def of(document: str, seed: int, valid_rate: float) -> str:
    """Returns the split that a document belongs to, "train" or "valid"."""
    text = document.encode("utf-8", "surrogatepass")
    drawn = hashlib.blake2b(
        text, digest_size=8, salt=seed.to_bytes(8, "little", signed=True)
    ).digest()
    return "valid" if int.from_bytes(drawn, "little") < valid_rate * 2**64 else "train"
