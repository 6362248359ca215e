"""The NumPy interpreter: what every op means, and a session that runs graphs.

`Session` runs a graph over batches; `check_supported` says beforehand which ops are missing; `evaluate` runs one op.
How ops are written: `interp.call`. What they compute with: `interp.numeric`.
"""

from interp.evaluate import evaluate
from interp.session import Session, check_supported

__all__ = ["Session", "check_supported", "evaluate"]
