"""Tasks of a source and a target: {train,dev,test}.jsonl, as `tasks.generation` reads them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scalelab.worlds.glue_files import MAX_TRIES, TEST_SHARE


def split_sizes(num_pairs: int) -> dict[str, int]:
    """Returns the pairs of each split; dev and test have a quarter of train."""
    return {"train": num_pairs} | dict.fromkeys(("dev", "test"), max(1, num_pairs // TEST_SHARE))


def draw(sizes: Mapping[str, int], pairs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Takes (source, target) pairs; returns the lines of each split. No source occurs twice.

    Raises:
      ValueError: there are too few different sources.
    """
    seen: set[str] = set()
    found: dict[str, list[str]] = {split: [] for split in sizes}
    for split, count in sizes.items():
        tries = 0  # pairs since the last new one
        while len(found[split]) < count:
            if (tries := tries + 1) > MAX_TRIES:
                raise ValueError(
                    f"the lexicon is too small for so many pairs ({len(seen):,} were found): ask"
                    " for fewer, or for more words"
                )
            source, target = next(pairs)
            if source not in seen:
                seen.add(source)
                tries = 0
                found[split].append(json.dumps({"source": source, "target": target}) + "\n")
    return found


def write(folder: Path, lines: Mapping[str, Iterable[str]]) -> None:
    """Writes the lines of each split to a new folder."""
    folder.mkdir(parents=True)
    for split, own in lines.items():
        (folder / f"{split}.jsonl").write_text("".join(own), encoding="utf-8")
