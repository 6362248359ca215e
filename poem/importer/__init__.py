"""From a checkpoint to the weights of a deployment: which one it is, what is done to each weight, and what is left out."""

from poem.importer.choose import plan_import
from poem.importer.plan import ImportPlan

__all__ = ["ImportPlan", "plan_import"]
