"""Bounds of ops.sampling: ids, so none. A differing id is a fault unless its runner-up was within the bound of the logits."""

from conformance.bounds.record import integers

integers("sampling.argmax")
