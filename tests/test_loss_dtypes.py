"""Loss masks of dtypes that NumPy does not know by itself."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dcpack.errors import ArgumentError
from dcpack.loss import valid_token_mask


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.bool_, np.int8])
def test_a_mask_of_any_numbers_is_taken(dtype: Any) -> None:
    assert valid_token_mask([1, 2, -100], np.array([1, 0, 1], dtype)).tolist() == [True, False, False]


def test_a_mask_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="loss_mask must be finite, got"):
        valid_token_mask([1, 2], np.array([1, np.nan], ml_dtypes.bfloat16))
