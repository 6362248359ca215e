"""How checkpoints map onto a layout: what `formats(m)` says, as plain data."""
