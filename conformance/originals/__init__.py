"""Original model classes of transformers, run and recorded: the outside truth that models are compared with."""

from conformance.originals.record import record_original

__all__ = ["record_original"]
