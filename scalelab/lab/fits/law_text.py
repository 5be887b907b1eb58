"""What is known of a fitted law in words, and as a table for programs."""

from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.lab import tables
from scalelab.lab.fits import fitting
from scalelab.lab.fits.fitting import HeldOut, Interval, Law

INTERVAL = "95% interval"

Check = tuple[list[HeldOut], str | None]  # on the largest size, or why there is none


def text(
    name: str,
    law: Law,
    check: Check,
    clocks: Sequence[str],
    measure: str,
    predictions: Mapping[float, Interval | str],
) -> str:
    """All that is known of one law, for a terminal."""
    num_runs = sum(len(run) for run in law.points.runs)
    scale = "logs" if law.form.logarithmic else "scores"
    lines = [
        f"{name}: {measure} = {law.form.text}, x = {' and '.join(clocks)};"
        f" {len(law.points.x)} points, {num_runs} runs; R^2 of {scale} {law.r_squared:.4f},"
        f" largest residual {np.abs(law.residuals).max():.2%}\n"
    ]
    rows = [[name, *of_parameter(law, name)] for name in law.form.parameters]
    lines.append(tables.plain(("parameter", "value", INTERVAL), rows))
    held, reason = check
    if held:
        rows = [
            [at(h.x), f"{h.observed:.4g}", f"{h.predicted.value:.4g}", ends(h.predicted),
             f"{h.relative_error:+.1%}", "yes" if h.inside else "NO"]
            for h in held
        ]  # fmt: skip
        header = ("held out at", "observed", "predicted", INTERVAL, "error", "inside")
        lines.append("\n" + tables.plain(header, rows))
    if predictions:
        rows = [[at((x,)), "-", "not predicted"] if isinstance(p, str) else
                [at((x,)), f"{p.value:.4g}", ends(p)] for x, p in predictions.items()]  # fmt: skip
        lines.append("\n" + tables.plain(("one run at", "predicted", INTERVAL), rows))
    refused = dict.fromkeys(p for p in predictions.values() if isinstance(p, str))
    said = [*remarks(law), *([reason] if reason else []), *refused]
    lines += [f"* {note}\n" for note in said]
    return "".join(lines)


def remarks(law: Law) -> list[str]:
    """What has to be said of a law."""
    found = []
    if law.at_limits:
        found.append(
            f"{', '.join(law.at_limits)}: at the end of what is allowed, so the points do not tell"
            f" {', '.join(law.undetermined)}; try another form, or wider sizes"
        )
    elif any(map(any, open_ends(law).values())):
        found.append("no end of an interval, -, where it is that of what is allowed")
    if all(len(run) == 1 for run in law.points.runs):
        found.append("one run a point: noise is known from the scatter around the law alone")
    return found


def of_parameter(law: Law, name: str) -> list[str]:
    """The value and the interval of a parameter; "-" for what the points do not tell."""
    if name in law.undetermined:
        return ["-", "not determined"]
    found = law.parameters[name]
    low_open, high_open = open_ends(law)[name]
    if low_open and high_open:
        return [f"{found.value:.4g}", "not determined"]
    low, high = "-" if low_open else f"{found.low:.4g}", "-" if high_open else f"{found.high:.4g}"
    return [f"{found.value:.4g}", f"[{low}, {high}]"]


def open_ends(law: Law) -> dict[str, tuple[bool, bool]]:
    """Of each parameter, whether the lower and the upper end of its interval are open.

    So is one that stands at the end of what is allowed, and that of a term's size if that of its
    exponent is, for the two go together.
    """
    d, found = law.form.num_inputs, []
    for end in np.percentile(law.samples, fitting.ENDS, axis=0):
        at_limit = [min(value - low, high - value) < fitting.LIMIT
                    for value, (low, high) in zip(end, law.limits, strict=True)]  # fmt: skip
        found.append([at_limit[k] or at_limit[d + k] for k in range(d)] + at_limit[d:])
    return dict(zip(law.form.parameters, zip(*found, strict=True), strict=True))


def ends(interval: Interval) -> str:
    """The ends of an interval."""
    return f"[{interval.low:.4g}, {interval.high:.4g}]"


def at(x: Sequence[float]) -> str:
    """Inputs, in short."""
    return ", ".join(f"{value:.4g}" for value in x)


def csv(laws: Mapping[str, Law], clocks: Sequence[str], measure: str) -> str:
    """The parameters for programs, with all digits; empty where the points do not tell them."""
    rows: list[list[str | float | None]] = []
    for system, law in laws.items():
        open_of = open_ends(law)
        for name, found in law.parameters.items():
            known = name not in law.undetermined
            low_open, high_open = open_of[name]
            rows.append([
                system, measure, " ".join(clocks), law.form.name, name,
                found.value if known else None,
                found.low if known and not low_open else None,
                found.high if known and not high_open else None,
            ])  # fmt: skip
    header = ("system", "y", "x", "form", "parameter", "value", "low", "high")
    return tables.comma_separated(header, rows)
