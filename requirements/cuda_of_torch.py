"""Print the option by which pip installs the CUDA libraries too, where the installed torch needs them."""

from importlib.metadata import requires
from pathlib import Path

if any(line.startswith("nvidia-") for line in requires("torch") or []):
    print("-r", Path(__file__).with_name("cuda.txt"))
