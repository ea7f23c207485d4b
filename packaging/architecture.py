"""The architecture that packages are for. For another one than this machine's, the tools are a cross compiler's, and an emulator starts the program,
which prints its own manual pages and completions."""

import platform

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


class Architecture:
    def __init__(self, name=None):
        self.name = name or platform.machine()
        self.is_own = self.name == platform.machine()
        self.debian = DEBIAN[self.name]
        self.option = "" if self.is_own else f" --arch {self.name}"

    def directory(self, name):
        """As in xtask/src/platform.rs."""
        return name if self.is_own else f"{name}-{self.name}"

    def tool(self, name):
        """A program of binutils."""
        return name if self.is_own else f"{self.name}-linux-gnu-{name}"

    def starts(self, program):
        """The command that starts `program`; the cross compiler has the C library."""
        return [program] if self.is_own else [f"qemu-{self.name}-static", "-L", f"/usr/{self.name}-linux-gnu", program]
