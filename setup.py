"""Where the packages lie once they are installed; all else is in pyproject.toml.

`model`, `experiments` and `reports` are names that a user's own code may have. A wheel therefore holds them inside
`ablations/rooms`, which `ablations` puts on the path of this program's processes alone. `ablations_task`, which a
user's trainer imports, lies at the top, where editors find it.
"""

from setuptools import find_packages, setup

ROOMS = ("model", "experiments", "reports")
TASK = "experiments.client.ablations_task"

rooms = find_packages(include=[pattern for name in ROOMS for pattern in (name, f"{name}.*")])
folders = {f"ablations.rooms.{name}": name.replace(".", "/") for name in rooms}
setup(
    packages=[*find_packages(include=["ablations", "ablations.*"]), *folders, "ablations_task"],
    package_dir={**folders, "ablations_task": TASK.replace(".", "/")},
)
