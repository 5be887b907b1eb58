"""Runs a program and counts the functions of scalelab that it calls; prints them as JSON.

  python tests/count_calls.py [--until=FUNCTION] PROGRAM ARGUMENTS...

The count ends when FUNCTION is called first. `calls` are the functions of scalelab that stand
between `main` and it. Comprehensions, and the bodies of modules and classes, do not count.
"""

import inspect
import json
import pathlib
import runpy
import sys
import threading
from types import CodeType, FrameType
from typing import Any

ROOT = str(pathlib.Path(__file__).resolve().parents[1] / "scalelab")


def ours(code: CodeType) -> bool:
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name[0] != "<"
    return is_function and code.co_filename.startswith(ROOT)


def main(program: str, *arguments: str, until: str | None) -> dict[str, Any]:
    found, stack = set[tuple[str, str]](), list[str]()

    def note(frame: FrameType | None, event: str, _: object) -> None:
        if event != "call" or frame is None or stack or not ours(frame.f_code):
            return
        found.add((frame.f_code.co_filename, frame.f_code.co_qualname))
        if frame.f_code.co_name == until:
            while frame is not None and frame.f_code.co_name != "main":
                stack.extend([frame.f_code.co_name] * ours(frame.f_code))
                frame = frame.f_back

    sys.argv = [program, *arguments]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
    files = {file for file, _ in found}
    return {"functions": len(found), "files": len(files), "calls": stack[::-1]}


if __name__ == "__main__":
    _, *given = sys.argv
    name = given.pop(0).removeprefix("--until=") if given[0].startswith("--until=") else None
    counted = main(*given, until=name)
    print(json.dumps(counted))
