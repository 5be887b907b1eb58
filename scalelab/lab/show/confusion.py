"""Pictures of what a fine-tuning predicted: a confusion matrix, or a scatter of scores."""

import pathlib
from collections.abc import Sequence

import numpy as np

from scalelab.lab.show import plots

POINTS, DIAGONAL = plots.COLORS[:2]


def draw(
    path: pathlib.Path,
    *,
    gold: np.ndarray,
    predicted: np.ndarray,
    labels: Sequence[str] | None,
    title: str,
) -> None:
    """Draws a confusion matrix, or without labels a scatter; arguments as for these."""
    if labels is None:
        draw_scatter(path, gold=gold, predicted=predicted, title=title)
    else:
        draw_confusion(path, gold=gold, predicted=predicted, labels=labels, title=title)


def draw_confusion(
    path: pathlib.Path,
    *,
    gold: np.ndarray,
    predicted: np.ndarray,
    labels: Sequence[str],
    title: str,
) -> np.ndarray:
    """Draws how often each class is taken for each.

    Args:
      path: the PNG.
      gold: [n] classes.
      predicted: [n] classes.
      labels: the C classes by name.
      title: what the figure says above.

    Returns:
      [C, C] the counts that were drawn, rows of gold.
    """
    num = len(labels)
    counts = np.bincount(gold * num + predicted, minlength=num * num).reshape(num, num)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = plots.canvas(2.6 + num, 1.8 + 0.8 * num)
    axis = figure.subplots()
    shown = axis.imshow(shares, cmap=plots.SHADES, vmin=0, vmax=1)
    for row, column in np.ndindex(num, num):
        color = "black" if shares[row, column] > 0.5 else "white"
        axis.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=color)
    slanted = max(map(len, labels)) > 6
    axis.set_xticks(range(num), labels, rotation=20 if slanted else 0)
    axis.set_yticks(range(num), labels)
    axis.set_xlabel("predicted")
    axis.set_ylabel("gold")
    axis.set_title(title)
    figure.colorbar(shown, label="share of the gold class")
    plots.save(figure, path, dpi=110)
    return counts


def draw_scatter(
    path: pathlib.Path, *, gold: np.ndarray, predicted: np.ndarray, title: str
) -> None:
    """Draws predicted against gold scores.

    Args:
      path: the PNG.
      gold: [n] scores.
      predicted: [n] scores.
      title: what the figure says above.
    """
    figure = plots.canvas(4.6, 4.4)
    axis = figure.subplots()
    axis.scatter(gold, predicted, s=8, alpha=0.4, color=POINTS, linewidths=0)
    ends = [float(np.min(gold)), float(np.max(gold))]
    axis.plot(ends, ends, color=DIAGONAL, lw=1, label="predicted = gold")
    axis.set_xlabel("gold")
    axis.set_ylabel("predicted")
    axis.set_title(title)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    plots.save(figure, path, dpi=110)
