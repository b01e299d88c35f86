"""Where the packages lie once they are installed; all else is in pyproject.toml.

A user's own code may have packages named `model`, `experiments` or `reports`. A wheel therefore installs ours in
`ablations/packages`, and `ablations` adds that folder to the import path of this program's processes only. A user's
trainer imports `ablations_task`, which is installed at the top level, where editors find it.
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
