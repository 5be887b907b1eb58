"""Prints what benchmarks.step measured, in Markdown."""

from typing import Any

from benchmarks.side_by_side import BUSY

SIDES = ("ours", "floor", "by_jax", "stock", "tuned", "compiled", "stock_apart", "tuned_apart")
COLUMNS = (
    "ms a step", "CPU ms", "kernel ms", "page faults", "tokens/s",
    "over ours", "by CPU", "of peak", "by CPU", "MB", "compiled",
)  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Prints a table for each system and shape."""
    print(
        f"\n{found['batch_size']} x {found['length']}, {found['vocab_size']:,} tokens, dropout"
        f" {found['dropout_rate']}, float32; {found['repeats']} repetitions of"
        f" {found['steps']} step(s)\n{found['device']}, {found['threads']} thread(s), load"
        f" {found['load']:.1f} at the start{BUSY if found['load'] > 0.5 else ''}\n"
        f"largest matrix products: {found['peak_flops_per_sec'] / 1e9:,.0f} GFLOP/s,"
        f" {found['peak_flops_per_cpu_sec'] / 1e9:,.0f} a second of CPU time"
    )
    if found["peer_versions"]:
        print(found["peer_versions"])
    for case in found["cases"]:
        one_case(case)


def one_case(case: dict[str, Any]) -> None:
    """Prints a system at a shape."""
    count, ours = case["flops"], case["ours"]
    forward = count["train"] / 3
    terms = ", ".join(f"{k} {count[k] / forward:.0%}" for k in ("body", "attention", "head"))
    floor, by_jax = case["floor"], case["by_jax"]
    print(
        f"\n{case['system']} {case['shape']}: {case['parameters']:,} parameters,"
        f" {count['train'] / 1e9:,.1f} GFLOP a step ({terms}); buffers"
        f" {ours['buffer_bytes'] / 1e6:,.0f} MB\n"
        f"share of the floor {floor['over_ours']:.2f}, by CPU time {floor['over_ours_cpu']:.2f}; of"
        f" the floor as JAX has it {by_jax['over_ours']:.2f}, by CPU time"
        f" {by_jax['over_ours_cpu']:.2f}\n"
    )
    print("| |" + "|".join(f" {column} " for column in COLUMNS) + "|")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name in SIDES:
        if name in case:
            print(f"| {name} | " + " | ".join(cells(case[name])) + " |")
    for name, reason in case["left_out"].items():
        print(f"{name} is left out: {reason}")


def cells(made: dict[str, Any]) -> list[str]:
    """The row of a side."""
    resident = made.get("resident_bytes")
    return [
        f"{made['step_secs'] * 1e3:,.1f}",
        f"{made['step_cpu_secs'] * 1e3:,.1f}",
        f"{made['step_kernel_secs'] * 1e3:,.1f}",
        f"{made['step_faults']:,.0f}",
        f"{made['tokens_per_sec']:,.0f}",
        f"{made['over_ours']:.2f}",
        f"{made['over_ours_cpu']:.2f}",
        f"{made['of_peak']:.2f}",
        f"{made['of_peak_cpu']:.2f}",
        f"{resident / 1e6:,.0f}" if resident else "",
        f"{made['compile_secs']:.1f} s",
    ]
