"""What benchmarks.accelerator measured: a table in Markdown, and what it says of the targets."""

import json
import pathlib
from typing import Any

SHORT = 128  # the length at which the targets are judged
TARGETS = (
    ("2x256x9, bfloat16, 64 x 128: under 2 ms a step", "2x256x9", "ms", 2.0),
    ("13x832x5, bfloat16, 64 x 128: share of peak 0.35", "13x832x5", "share_of_peak", 0.35),
)
HEADER = ("shape", "dtype", "batch", "seeds", "steps a dispatch", "ms a step", "tokens/s")
HEADER += ("share of peak", "of measured product", "memory", "compiled in")


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that did not fail."""
    return [row for row in rows if "ms" in row]


def named(row: dict[str, Any]) -> str:
    """A line's shape, and what its net has in a part's place."""
    return " with ".join(filter(None, (row["shape"], row.get("candidate"))))


def conclusions(rows: list[dict[str, Any]], platform: str) -> list[str]:
    """What the lines say about the targets.

    Args:
      rows: the lines.
      platform: JAX's word for the kind of device; the targets are none for "cpu".
    """
    rows = measured(rows)
    if not rows:
        return ["no line was measured"]

    def verdict(met: bool) -> str:
        return "not judged on CPU" if platform == "cpu" else "met" if met else "not met"

    said = []
    whole = [r for r in rows if r["dtype"] == "bfloat16" and r["seeds"] == 1]
    for text, shape, key, wanted in TARGETS:
        of_shape = [r for r in whole if r["shape"] == shape and r["length"] == SHORT]
        for row in sorted(of_shape, key=lambda row: row["block"]):
            value, block = row[key], row["block"]
            if value is None:
                continue
            text = f"{text}, with {row['candidate']}" if row.get("candidate") else text
            if block == 1:
                met = value < wanted if key == "ms" else value >= wanted
                said.append(f"{text}: {value:.3g}, {verdict(met)}")
            else:
                said.append(f"{text}: {block} steps a dispatch would give {value:.3g}")
    for row in rows:
        if row["seeds"] > 1:
            alone = [r for r in whole if r["shape"] == row["shape"] and r["block"] == row["block"]
                     and r["length"] == row["length"]]  # fmt: skip
            if alone:
                ratio = row["seeds"] * alone[0]["ms"] / row["ms"]
                said.append(
                    f"{row['seeds']} seeds of {named(row)} together, {row['block']} steps a"
                    f" dispatch: {ratio:.2f}x one after another (target 4 on an H200),"
                    f" {verdict(ratio >= 4)}"
                )
    return said


def markdown(found: dict[str, Any]) -> str:
    """The table, and what it says."""
    share = lambda value: "-" if value is None else f"{value:.3f}"  # noqa: E731
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for r in found["rows"]:
        start = [named(r), r["dtype"], f"{r['batch_size']} x {r['length']}", str(r["seeds"])]
        start.append(str(r["block"]))
        if "error" in r:
            cells = [*start, r["error"], *[""] * (len(HEADER) - len(start) - 1)]
        else:
            cells = [
                *start, f"{r['ms']:.3g}", f"{r['tokens_per_sec']:,.0f}", share(r["share_of_peak"]),
                share(r["share_of_product"]), f"{r['memory_bytes'] / 2**30:.2f} GiB",
                f"{r['compile_secs']:.0f} s",
            ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    peaks = "; ".join(
        f"{dtype}: measured product {p['measured'] / 1e12:,.3g} TFLOP/s"
        + (f", table {p['table'] / 1e12:,.3g}" if p["table"] else "")
        for dtype, p in found["peaks"].items()
    )
    head = (
        f"{found['device']}, JAX {found['jax']}, commit {found['commit']}, {found['secs']:.0f} s\n"
        f"`{found['command']}`\n{peaks}\n\n"
    )
    left = f"\nnot reached in the time: {', '.join(found['left'])}\n" if found["left"] else ""
    said = "".join(f"- {text}\n" for text in conclusions(found["rows"], found["platform"]))
    return head + "\n".join(lines) + "\n\n" + said + left


def write(folder: pathlib.Path, found: dict[str, Any]) -> None:
    """Writes both files, each at once or not at all."""
    texts = {"json": json.dumps(found, indent=1) + "\n", "md": markdown(found)}
    for suffix, text in texts.items():
        path = folder / f"accelerator.{suffix}"
        path.with_suffix(".new").write_text(text, encoding="utf-8")
        path.with_suffix(".new").replace(path)
