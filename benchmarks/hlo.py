"""What a compiled program does on a GPU, read from XLA's text of it: kernels, bytes, products.

Products are counted where XLA's text has them as such, which it does where nothing was chosen by
trying; those of libraries (cuBLAS) are calls that do not say what they multiply. A loop that does
not say how often it turns counts once, a branch as one kernel.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w\-]+)\(")
COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+)\w*\[([\d,]*)\]")
CALLED = re.compile(r"(?:calls|body|to_apply)=%?([\w.\-]+)")
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
# What is no kernel: names, and what is done where it is used.
NO_KERNEL = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "iota"}
# Reads what it gives of its first operand alone.
PARTS = {"slice", "dynamic-slice", "gather"}
# Writes into its first operand what the operand of that index holds.
WRITES = {"scatter": 2, "dynamic-update-slice": 1}
# Kinds of kernels by the names that XLA gives them, the first that fits.
KINDS = (
    ("products", r"gemm|cublas|dot|cudnn"),
    ("scatters", r"scatter"),
    ("reductions", r"reduce"),
    ("moves", r"transpose|slice|concatenate|pad|copy|broadcast"),
    ("kernels of our own", r"pallas"),
    ("elementwise and softmax", r""),
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
      name: XLA's.
      source: the operation that it was made for, as JAX names it.
      kind: see KINDS.
      num_bytes: read and written, each array once.
      flops: of its products.
      turns: how often it runs.
    """

    name: str
    source: str
    kind: str
    num_bytes: int
    flops: float
    turns: int = 1


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    line: str

    @functools.cached_property
    def num_bytes(self) -> int:
        """Of the result."""
        return sum(
            math.ceil(int(re.sub(r"\D", "", dtype) or 8) / 8) * math.prod(_sizes(sizes))
            for dtype, sizes in ARRAY.findall(self.shape)
        )


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]


def _operands(line: str, start: int) -> tuple[str, ...]:
    """Names between the parenthesis that ends at `start` and the one that closes it."""
    depth, end = 1, start
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return tuple(re.findall(r"%([\w.\-]+)", line[start:end]))


def computations(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """All computations of a module, instructions by name, and which is the entry."""
    found: dict[str, dict[str, Instruction]] = {}
    entry, now = "", ""
    for line in text.splitlines():
        if (head := COMPUTATION.match(line)) and not line.startswith(" "):
            now = head[1]
            found[now] = {}
            entry = now if line.startswith("ENTRY") else entry
        elif now and (m := INSTRUCTION.match(line)):
            found[now][m[1]] = Instruction(m[1], m[2], m[3], _operands(line, m.end()), line)
    return found, entry


def _flops(one: Instruction, around: dict[str, Instruction]) -> float:
    """Of one instruction, if it is a product."""
    contracted = CONTRACTED.search(one.line) if one.operation == "dot" else None
    if contracted is None:
        return 0.0
    (_, result), *_ = ARRAY.findall(one.shape)
    (_, left), *_ = ARRAY.findall(around[one.operands[0]].shape)
    size = math.prod(_sizes(left)[axis] for axis in _sizes(contracted[1]))
    return 2.0 * math.prod(_sizes(result)) * size


def _used(body: dict[str, Instruction], name: str) -> tuple[int, int]:
    """How many bytes of a value a computation reads, and how many it writes into it."""
    whole = body[name].num_bytes
    read = written = 0
    for user in body.values():
        if name not in user.operands:
            continue
        if user.operation == "bitcast":
            more = _used(body, user.name)
        elif user.operation in WRITES and user.operands[0] == name:
            count = min(whole, body[user.operands[WRITES[user.operation]]].num_bytes)
            more = (count, count)  # what is there is read, and written back
        else:
            in_part = user.operation in PARTS and user.operands[0] == name
            more = (user.num_bytes if in_part else whole, 0)
        read, written = read + more[0], written + more[1]
    return min(read, whole), min(written, whole)


def _moved(one: Instruction, body: dict[str, Instruction] | None, around: dict) -> int:
    """Bytes that an instruction reads and writes; `body` is what a fusion calls."""
    if one.operation in PARTS:
        return 2 * one.num_bytes
    if one.operation == "copy-start":
        return 2 * around[one.operands[0]].num_bytes
    if body is None:
        return one.num_bytes + sum(around[name].num_bytes for name in one.operands)
    total = one.num_bytes
    for value in body.values():
        if value.operation == "parameter":
            read, written = _used(body, value.name)
            # The result in whose place the value is counts as what is written there.
            total += read + (written - value.num_bytes if written else 0)
    return total


def kernels(text: str) -> Iterator[Kernel]:
    """The kernels of a compiled program in their order, those of loops once with their turns."""
    found, entry = computations(text)
    yield from _of(found, entry, 1)


def _of(found: dict[str, dict[str, Instruction]], name: str, turns: int) -> Iterator[Kernel]:
    for one in found[name].values():
        if one.operation in NO_KERNEL or one.operation.endswith("-done"):
            continue
        called = CALLED.search(one.line)
        if one.operation in ("while", "call") and called:
            told = TURNS.search(one.line)
            yield from _of(found, called[1], turns * (int(told[1]) if told else 1))
            continue
        body = found[called[1]] if one.operation == "fusion" and called else None
        source = re.search(r'op_name="([^"]*)"', one.line)
        shown = f"{one.name} {one.operation}" if one.operation != "fusion" else one.name
        target = re.search(r'custom_call_target="([^"]*)"', one.line)
        shown += f" {target[1]}" if target else ""
        kind = next(kind for kind, pattern in KINDS if re.search(pattern, shown))
        flops = sum(_flops(x, body) for x in body.values()) if body else _flops(one, found[name])
        moved = _moved(one, body, found[name])
        yield Kernel(one.name, source[1] if source else "", kind, moved, flops, turns)
