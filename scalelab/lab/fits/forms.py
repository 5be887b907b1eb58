"""The forms of scaling laws, as `fitting` sees them: a value on a scale of comparison, its slope.

| name | law | for |
|---|---|---|
| power | E + A x^-a | a loss that falls to E (Henighan et al. 2020, arXiv:2010.14701) |
| plain | A x^-a, a of either sign | costs, and losses far above their floor (Kaplan et al. 2020) |
| joint | E + A N^-a + B D^-b | a loss against size and data (Hoffmann et al. 2022, equation 2) |
| rising | C - A x^-a | a score that rises to its ceiling C |

The first three are sums of positive terms and are compared with data on the log scale: the log of a
sum of exponentials, whose arguments are linear in what is fitted (Hoffmann et al., appendix D.3).
A score may be 0 or below, so the last is compared as it is, in units of the mean score.

Inside a fit, u = log(x / x0) with x0 the geometric mean of the data, so that a term is
exp(log_a - a u): its size amid the data and its slope are then nearly independent.
"""

import dataclasses
import itertools

import numpy as np
import scipy.optimize

MAX_EXPONENT = 5.0
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the grid of starts
FEWER = (0.1, 0.25, 0.5, 1.0, 1.5)  # likewise, for each of two
NOTHING = 1e-6  # of the smallest loss: a term of this size is as good as absent

Bounds = list[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Form:
    """A law with free parameters theta.

    Attributes:
      name: in the table above.
      text: the law, for tables.
      parameters: their names, in natural units, in the order of theta.
      num_inputs: 1, or 2 for the joint form.
      logarithmic: whether data and law are compared on the log scale.
      offset: whether there is a term that does not depend on x.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    num_inputs: int = 1
    logarithmic: bool = True
    offset: bool = True

    def value(self, theta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The law on the scale of comparison.

        Args:
          theta: [..., p], a law for each leading index.
          u: [n, num_inputs].

        Returns:
          Values [..., n] and their derivatives [..., n, p].
        """
        return (_sum_of_terms if self.logarithmic else _rising)(self, theta, u)

    def starts(self, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Where fits begin: exponents on a grid, all else by non-negative least squares.

        Args:
          u: [n, num_inputs].
          y: [n], in units in which the law is compared; not its log.

        Returns:
          [starts, p].
        """
        grid = FEWER if self.num_inputs > 1 else EXPONENTS
        if not self.offset:
            grid = (*(-a for a in grid), *grid)
        return np.array([self._start(np.array(a), u, y)
                         for a in itertools.product(grid, repeat=self.num_inputs)])  # fmt: skip

    def bounds(self, y: np.ndarray, unit: float) -> Bounds:
        """Limits of theta for y [n] in a unit; a score's ceiling is a perfect one, 1 or 100."""
        lowest = 0.0 if self.offset else -MAX_EXPONENT
        terms = [(-50.0, 50.0)] * self.num_inputs
        exponents = [(lowest, MAX_EXPONENT)] * self.num_inputs
        if not self.logarithmic:
            best = float(np.abs(y).max()) * unit
            perfect = 1.0 if best <= 1 else 100.0 if best <= 100 else np.inf
            return [*terms, *exponents, (0.0, perfect / unit)]
        if not self.offset:
            return terms + exponents
        return [*terms, *exponents, (float(np.log(NOTHING * y.min())), float(np.log(y.max())))]

    def natural(self, theta: np.ndarray, u0: np.ndarray, unit: float) -> np.ndarray:
        """Parameters as the law is written.

        Args:
          theta: [..., p].
          u0: [num_inputs], log x0.
          unit: that y was divided by.

        Returns:
          [..., p], in the order of `parameters`.
        """
        d = self.num_inputs
        log_a, exponents = theta[..., :d], theta[..., d : 2 * d]
        found = [unit * np.exp(log_a + exponents * u0), exponents]
        if self.offset:
            last = theta[..., 2 * d :]
            found.append(unit * (np.exp(last) if self.logarithmic else last))
        return np.concatenate(found, axis=-1)

    def _start(self, exponents: np.ndarray, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        columns = np.exp(-exponents * u)
        if not self.logarithmic:
            columns = -columns
        if self.offset:
            columns = np.column_stack([columns, np.ones(len(u))])
        weights = 1 / y if self.logarithmic else np.ones(len(y))
        sizes, _ = scipy.optimize.nnls(columns * weights[:, None], y * weights)
        least = NOTHING * float(np.abs(y).max())
        logs = np.log(np.maximum(sizes, least))
        last = logs if self.logarithmic else sizes
        return np.concatenate([logs[: self.num_inputs], exponents, last[self.num_inputs :]])


def _sum_of_terms(form: Form, theta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log of the sum, and its derivatives: each term's share of the sum."""
    d = form.num_inputs
    terms = theta[..., None, :d] - theta[..., None, d : 2 * d] * u
    if form.offset:
        last = np.broadcast_to(theta[..., None, 2 * d :], (*terms.shape[:-1], 1))
        terms = np.concatenate([terms, last], axis=-1)
    total = np.logaddexp.reduce(terms, axis=-1)
    shares = np.exp(terms - total[..., None])
    slopes = [shares[..., :d], -shares[..., :d] * u, shares[..., d:]]
    return total, np.concatenate(slopes, axis=-1)


def _rising(form: Form, theta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The law itself and its derivatives."""
    del form
    log_a, exponent, ceiling = np.moveaxis(theta[..., None], -2, 0)
    term = np.exp(log_a - exponent * u[:, 0])
    return ceiling - term, np.stack([-term, term * u[:, 0], np.ones_like(term)], axis=-1)


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("power", "E + A x^-a", ("A", "a", "E")),
        Form("plain", "A x^-a", ("A", "a"), offset=False),
        Form("joint", "E + A N^-a + B D^-b", ("A", "B", "a", "b", "E"), num_inputs=2),
        Form("rising", "C - A x^-a", ("A", "a", "C"), logarithmic=False),
    )
}
