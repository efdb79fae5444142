"""Print the option by which pip also installs the CUDA libraries, where the installed torch is a build that needs them."""

from importlib.metadata import requires
from pathlib import Path

if any(line.startswith("nvidia-") for line in requires("torch") or []):
    print("-r", Path(__file__).with_name("cuda.txt"))
