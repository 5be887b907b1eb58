"""Functional forms of scaling laws, each with its derivatives, starting points and bounds.

| name | law | for |
|---|---|---|
| power | E + A x^-a | a loss that falls to E (Henighan et al. 2020, arXiv:2010.14701) |
| plain | A x^-a, a of either sign | costs, and losses far above their floor (Kaplan et al. 2020) |
| joint | E + A N^-a + B D^-b | a loss against size and data (Hoffmann et al. 2022, equation 2) |
| rising | C - A x^-a | a score that rises to its ceiling C |

The first three are compared with data on the log scale, as the log of a sum of exponentials that
are linear in theta (Hoffmann et al., appendix D.3). Scores may be 0 or below, so `rising` is
compared on the scale of the scores, in units of their mean.

Theta holds log A (and log B), the exponents, and log E or C, with x replaced by exp(u),
u = log(x / x0) and x0 the geometric mean of the data. A term is then exp(log A - a u), and its size
and exponent are nearly independent.
"""

import dataclasses
import itertools

import numpy as np
import scipy.optimize

MAX_EXPONENT = 5.0
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)  # grid of starts, one input
JOINT_EXPONENTS = (0.1, 0.25, 0.5, 1.0, 1.5)  # grid of starts for each of two inputs
ABSENT = 1e-4  # a term smaller than this share of the smallest loss counts as absent


@dataclasses.dataclass(frozen=True)
class Form:
    """A law with free parameters theta.

    Attributes:
      name: its name in the table above.
      text: the law, for tables.
      parameters: their names in natural units, in the order of theta.
      num_inputs: 1, or 2 for the joint form.
      logarithmic: whether data and law are compared on the log scale.
      offset: whether the law has a constant term.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    num_inputs: int = 1
    logarithmic: bool = True
    offset: bool = True

    def value(self, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Returns the law on the scale of comparison: [..., n] for theta [..., p], u [n, d]."""
        return self._evaluate(theta, u)[0]

    def slopes(self, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Returns the derivatives of `value` with respect to theta, [..., n, p]."""
        return self._evaluate(theta, u)[1]

    def starts(self, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Returns starting points [starts, p]: exponents on a grid, the rest by least squares.

        Args:
          u: [n, num_inputs].
          y: [n], in units in which the law is compared, not its log.
        """
        grid = JOINT_EXPONENTS if self.num_inputs > 1 else EXPONENTS
        if not self.offset:
            grid = (*(-a for a in grid), *grid)
        pairs = itertools.product(grid, repeat=self.num_inputs)
        return np.array([self._start(np.array(exponents), u, y) for exponents in pairs])

    def bounds(self, y: np.ndarray, unit: float) -> np.ndarray:
        """Returns the bounds [2, p] of theta for y [n]; a score's ceiling is at most 1 or 100."""
        ends = [(-50.0, 50.0)] * self.num_inputs
        ends += [(0.0 if self.offset else -MAX_EXPONENT, MAX_EXPONENT)] * self.num_inputs
        if not self.logarithmic:
            best = float(np.abs(y).max()) * unit
            perfect = 1.0 if best <= 1 else 100.0 if best <= 100 else np.inf
            ends.append((0.0, perfect / unit))
        elif self.offset:
            ends.append((float(np.log(ABSENT * y.min())), float(np.log(y.max()))))
        return np.array(ends).T

    def natural(self, theta: np.ndarray, u0: np.ndarray, unit: float) -> np.ndarray:
        """Returns the parameters as the law is written, [..., p].

        Args:
          theta: [..., p].
          u0: log x0, [num_inputs].
          unit: the number that y was divided by.
        """
        d = self.num_inputs
        log_a, exponents, last = theta[..., :d], theta[..., d : 2 * d], theta[..., 2 * d :]
        last = np.exp(last) if self.logarithmic else last
        parts = [unit * np.exp(log_a + exponents * u0), exponents, unit * last]
        return np.concatenate(parts, axis=-1)

    def _start(self, exponents: np.ndarray, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        columns = np.exp(-exponents * u) * (1 if self.logarithmic else -1)
        if self.offset:
            columns = np.column_stack([columns, np.ones(len(u))])
        weights = 1 / y if self.logarithmic else np.ones(len(y))
        sizes, _ = scipy.optimize.nnls(columns * weights[:, None], y * weights)
        logs = np.log(np.maximum(sizes, ABSENT * float(np.abs(y).max())))
        last = logs if self.logarithmic else sizes
        return np.concatenate([logs[: self.num_inputs], exponents, last[self.num_inputs :]])

    def _evaluate(self, theta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and derivatives: each derivative of the log of a sum is its term's share."""
        d = self.num_inputs
        terms = theta[..., None, :d] - theta[..., None, d : 2 * d] * u
        last = np.broadcast_to(theta[..., None, 2 * d :], (*terms.shape[:-1], int(self.offset)))
        if not self.logarithmic:
            term = np.exp(terms)
            return (last - term)[..., 0], np.concatenate([-term, term * u, 0 * term + 1], axis=-1)
        terms = np.concatenate([terms, last], axis=-1)
        total = np.logaddexp.reduce(terms, axis=-1)
        shares = np.exp(terms - total[..., None])
        slopes = [shares[..., :d], -shares[..., :d] * u, shares[..., d:]]
        return total, np.concatenate(slopes, axis=-1)


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("power", "E + A x^-a", ("A", "a", "E")),
        Form("plain", "A x^-a", ("A", "a"), offset=False),
        Form("joint", "E + A N^-a + B D^-b", ("A", "B", "a", "b", "E"), num_inputs=2),
        Form("rising", "C - A x^-a", ("A", "a", "C"), logarithmic=False),
    )
}
