"""As much of PyTorch as the inference example names."""


class cuda:
    class OutOfMemoryError(RuntimeError):
        """As PyTorch's."""
