"""`parquet:DIR`: WikiText as the Hugging Face hub ships it (`Salesforce/wikitext`).

`train-00000-of-00002.parquet`, `validation-...`, `test-...`; each row of the column `text` is one
line of the WikiText file. A section is a document.
"""

from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.data.corpora.wikitext import sections
from scalelab.helpers.files import listing, reading
from scalelab.helpers.names import check_names

VERSION = "1"
COLUMN = "text"
SPLITS = {"train": "train", "validation": "valid", "test": "test"}


def read(argument: str, settings: corpora.Data) -> corpora.Source:
    """Opens the files in the folder `argument`; raises ValueError without a training file."""
    folder = corpora.folder(argument, "parquet")
    files = {split: sorted(folder.glob(f"{source}-*.parquet")) for source, split in SPLITS.items()}
    files = {split: paths for split, paths in files.items() if paths}
    if "train" not in files:
        raise ValueError(f"corpus parquet:{argument}: expected train-*.parquet; {listing(folder)}")

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        lines = (line for path in paths for line in _lines(path, settings.errors, tick))
        return sections(lines, settings.keep_headings)

    return corpora.from_files(files, documents)


def _lines(path: Path, errors: str, tick: corpora.Tick) -> Iterator[str]:
    import pyarrow  # takes a while, and only this reader needs it
    import pyarrow.parquet

    with reading(path), pyarrow.parquet.ParquetFile(path) as file:
        check_names([COLUMN], file.schema_arrow.names, f"{path}: there is no column")
        size = path.stat().st_size
        rows = max(1, file.metadata.num_rows)
        for batch in file.iter_batches(columns=[COLUMN]):
            # As bytes: the message names the row that is not UTF-8.
            for row, value in enumerate(batch.column(0).cast("binary").to_pylist()):
                where = f"{path}, row {row}"
                yield corpora.decode(value or b"", errors, where).rstrip("\r\n")
            tick(size * len(batch) // rows)
