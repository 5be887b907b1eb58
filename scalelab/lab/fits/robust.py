"""Robust fits, many at once: the Huber loss by reweighted least squares with damped steps."""

import numpy as np

from scalelab.lab.fits.forms import Bounds, Form

MAX_STEPS = 1000
PATIENCE = 20  # steps in a row that bring nothing


def minimise(
    form: Form,
    u: np.ndarray,
    z: np.ndarray,
    starts: np.ndarray,
    bounds: Bounds,
    delta: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Minimises many Huber losses at once, by reweighted least squares with damped steps.

    Huber's loss lies below the parabola of weight 1 / max(|r|, delta) that touches it, so a step
    down that parabola is one down the loss; the damping of Levenberg and Marquardt sees to it where
    the law bends. A parameter at its limit stays there while the slope pushes it out.

    Args:
      form: of the law.
      u: [n, num_inputs].
      z: [n], or one set of data a start, [starts, n].
      starts: [starts, p].
      bounds: of theta.
      delta: of the loss.

    Returns:
      Each start's theta [starts, p] and loss over delta [starts].
    """
    low, high = np.array(bounds).T
    z = np.broadcast_to(z, (len(starts), len(u)))
    found = np.clip(starts, low, high)
    losses = huber(form.value(found, u)[0] - z, delta).sum(-1)
    damping, quiet = np.full(len(found), 1e-3), np.zeros(len(found), int)
    for _ in range(MAX_STEPS):
        busy = np.flatnonzero(quiet < PATIENCE)
        if not len(busy):
            break
        theta = found[busy]
        value, slopes = form.value(theta, u)
        r = value - z[busy]
        weighted = (slopes / np.maximum(np.abs(r), delta)[..., None]).swapaxes(-1, -2)
        gradient = (weighted @ r[..., None])[..., 0]
        held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
        curvature = (weighted @ slopes) * ~(held[:, :, None] | held[:, None, :])
        size = np.diagonal(curvature, axis1=-2, axis2=-1)
        added = damping[busy, None] * size + 1e-12 * size.max(-1, keepdims=True) + held + 1e-300
        system = curvature + added[..., None] * np.eye(len(low))
        step = np.linalg.solve(system, np.where(held, 0, gradient)[..., None])[..., 0]
        tried = np.clip(theta - step, low, high)
        loss = huber(form.value(tried, u)[0] - z[busy], delta).sum(-1)
        gain = losses[busy] - loss
        quiet[busy] = np.where(gain > 1e-9 * losses[busy], 0, quiet[busy] + 1)
        damping[busy] = np.clip(damping[busy] * np.where(gain > 0, 0.25, 8), 1e-12, 1e12)
        better = busy[gain > 0]
        found[better], losses[better] = tried[gain > 0], loss[gain > 0]
    return found, losses


def huber(r: np.ndarray, delta: float) -> np.ndarray:
    """Huber's loss over delta: r^2 / (2 delta) up to delta, |r| - delta / 2 from there on."""
    size = np.abs(r)
    return np.where(size <= delta, r * r / (2 * delta), size - delta / 2)
