"""Numpy's linear algebra, whose types are wider than those of the arrays here."""

from __future__ import annotations

from typing import Any

import numpy as np

linalg: Any = np.linalg
