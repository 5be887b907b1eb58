"""Arrays on disk that are appended to and then memory-mapped."""

from pathlib import Path

import numpy as np
from numpy.lib import format as npy


class ArrayWriter:
    """Writes a one-dimensional `.npy` file piece by piece.

    Plain writes, not a memory map: on a full disk a write fails with an error, a map kills the
    process.
    """

    def __init__(self, path: Path, dtype: np.typing.DTypeLike):
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._file = path.open("wb")
        self._data_offset = self._write_header()

    def append(self, values: np.ndarray) -> None:
        """Appends values [n], which must fit the type."""
        self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self.length += len(values)

    def close(self) -> None:
        """Completes the header with the number of values."""
        if not self._file.closed:
            self._file.seek(0)
            assert self._write_header() == self._data_offset  # numpy leaves room for a longer shape
            self._file.close()

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            self.close()
        self._file.close()

    def _write_header(self) -> int:
        header = {
            "descr": npy.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.length,),
        }
        npy.write_array_header_1_0(self._file, header)
        return self._file.tell()


def load(path: Path) -> np.ndarray:
    """Maps an array; an empty one, which cannot be mapped, is read."""
    array = np.load(path, mmap_mode="r")
    return array if array.size else np.asarray(array)
