"""Takes the place of SGLang's kernel package on a host without a GPU.

SGLang's CPU engine imports operators by name from ``sgl_kernel`` at start-up. The published package is built for CUDA and cannot
be imported without a driver. Plain decoding on a CPU calls none of these operators, so names are enough; a call is an error.
"""

__version__ = "0.4.10"


def __getattr__(name: str):
    if not name.endswith("_cpu"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}: this host has no compiled CPU kernels")

    missing.__name__ = name
    return missing
