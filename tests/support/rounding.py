"""How much the results of two processors, kernels or orders of a sum may differ."""

import numpy as np


def rounding(n: int, dtype: type = np.float64) -> float:
    """Bound the relative error of n roundings in a row: nu / (1 − nu), where u is half of the type's epsilon.

    A sum of n products, added in any order and fused or not, is this close to the exact one, relative to the sum of
    their absolute values (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Two such sums of the
    same products differ by twice that. Functions of libm count as two roundings.
    """
    nu = n * float(np.finfo(dtype).eps) / 2
    assert nu < 0.1, f"{n} roundings leave nothing to compare in {dtype}"
    return nu / (1 - nu)
