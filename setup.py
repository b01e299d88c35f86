"""The folders into which the packages are installed. All other settings are in pyproject.toml.

A user's code may have packages named `model`, `experiments` or `reports`. A wheel therefore installs ours in
`ablations/packages`, and `ablations` adds this folder to the import path only in this program's processes. A user's
trainer imports `ablations_task`, which is installed at the top level, where editors can find it.
"""

from setuptools import find_packages, setup

INNER = ("model", "experiments", "reports")
TASK = "experiments.client.ablations_task"

inner = find_packages(include=[pattern for name in INNER for pattern in (name, f"{name}.*")])
folders = {f"ablations.packages.{name}": name.replace(".", "/") for name in inner}
setup(
    packages=[*find_packages(include=["ablations", "ablations.*"]), *folders, "ablations_task"],
    package_dir={**folders, "ablations_task": TASK.replace(".", "/")},
)
