"""From a Graph to launches: `plan` decides, the records say what was decided."""

from cupy_backend.plan.build import plan
from cupy_backend.plan.record import ARCHS, Bucket, Columns, Cost, Options, Plan, Step, Stored, nearest_arch

__all__ = ["ARCHS", "Bucket", "Columns", "Cost", "Options", "Plan", "Step", "Stored", "nearest_arch", "plan"]
