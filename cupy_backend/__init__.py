"""The CUDA backend: from a Graph to launches of handwritten kernels, on two devices.

`cuda` runs them on a GPU; `emu` runs the same sources on the CPU and checks every access while it does (docs/emulator.md).
"""
