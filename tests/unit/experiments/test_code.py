"""Which edits of a user's files count as changed code (of this program's: test_code_reach.py)."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from experiments import identity
from experiments.store.code import FORMAT, code_digest, code_digests, files_of, root_at

SCALED = "def scaled(x, *, by=FACTOR):\n    return x * by\n"
ABOVE = "class Above:\n    def start(self, x):\n        return x + 14\n\n"
FILES = {
    "train.py": '''
"""About the module."""
from __future__ import annotations
import math  # of Python's
import helper
import lib.shapes as geometry
from lib import CHOICES, Base
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from lib.shapes import double

RATE, OTHER = 0.5, 1
if OTHER:
    FIRST = SECOND = 2

@geometry.doubled
def step(x: "int | None", by=3):
    """The formula."""
    # why so
    return math.sqrt(x + RATE) * by

class Net(Base):
    """What it is."""
    width: int = 4
    depth = 8
    def forward(self, x):
        def inner(y):
            return y * 7
        return self.start(inner(x))

def TASK(settings, context):
    from lib import late
    names = [helper for helper in "ab"]
    scaled = helper.scaled(RATE, OTHER, FIRST)
    return [make(step, scaled, Net().forward(1), names) for make in CHOICES.values()] + late.values()

def unused():
    return 99
''',
    "helper.py": f"FACTOR = 12\n{SCALED}",
    "lib/__init__.py": "from .words import *\nfrom .models import Base\n",
    "lib/words.py": "def sum_up(*parts):\n    return 13\nCHOICES = {'sum': sum_up}\n",
    "lib/models.py": f"from . import shapes\n{ABOVE}class Base(Above):\n    sides = shapes.SIDES\n",
    "lib/shapes.py": "SIDES = 15\ndef doubled(f):\n    return lambda x: 2 * f(x)\ndef double(x):\n    return 16\n",
    "lib/late.py": "def values():\n    try:\n        from fast import value\n    except ImportError:\n"
    "        from lib.slow import value\n    return [value]\n",
    "lib/slow.py": "value = 17\n",
}  # fmt: skip

Edit = tuple[str, str, str]  # file, old, new
SAME: dict[str, list[Edit]] = {
    "a comment": [("train.py", "# why so", "# another reason")],
    "the module's docstring": [("train.py", "About the module.", "Of the module.")],
    "a docstring": [("train.py", "The formula.", "")],
    "an annotation": [("train.py", '"int | None"', "object")],
    "a field's annotation": [("train.py", "width: int", "width: object")],
    "what only the checker imports": [("train.py", "import double", "import doubled")],
    "layout": [("train.py", "    return math", "    return  math")],
    "a definition that is not reached": [("train.py", "return 99", "return 98"), ("lib/shapes.py", "16", "61")],
    "the order of definitions": [
        ("lib/shapes.py", "SIDES = 15\n", ""),
        ("lib/shapes.py", "    return 16\n", "    return 16\nSIDES = 15\n"),
    ],
    "a function that moved to another file": [
        ("train.py", "import helper\n", "import helper as other\nfrom lib.shapes import scaled as by_factor\n"),
        ("train.py", "helper.scaled", "by_factor"),
        ("helper.py", SCALED, ""),
        ("lib/shapes.py", "SIDES", f"from helper import FACTOR\n{SCALED}SIDES"),
    ],
    "a file with another name": [
        ("lib/slow.py", "value = 17\n", ""),
        ("lib/slower.py", "", "value = 17\n"),
        ("lib/late.py", "lib.slow", "lib.slower"),
    ],
    "a name for an import": [("train.py", "shapes as geometry", "shapes as g"), ("train.py", "@geometry", "@g")],
    "a file that was split": [
        ("lib/models.py", ABOVE, "from .above import Above\n"),
        ("lib/above.py", "", ABOVE),
    ],
    "an import by name in place of the module's": [
        ("lib/models.py", "from . import shapes", "from lib.shapes import SIDES as shapes_sides"),
        ("lib/models.py", "= shapes.SIDES", "= shapes_sides"),
    ],
}  # fmt: skip
OTHER: dict[str, list[Edit]] = {
    **{f"the constant {number}": [(file, number, f"{number}1")] for file, number in (
        ("train.py", "0.5"), ("train.py", "3"), ("train.py", "4"), ("train.py", "7"), ("helper.py", "12"),
        ("lib/words.py", "13"), ("lib/models.py", "14"), ("lib/shapes.py", "15"), ("lib/slow.py", "17"))},
    "another of two that one statement defines": [("train.py", "RATE, OTHER, FIRST", "OTHER, RATE, FIRST")],
    "another of two that a condition defines": [("train.py", "OTHER, FIRST", "OTHER, SECOND")],
    "an operator": [("train.py", "x + RATE", "x - RATE")],
    "another function of a module": [("train.py", "math.sqrt", "math.exp")],
    "another module under the name": [("train.py", "import math", "import cmath as math")],
    "another decorator": [("train.py", "@geometry.doubled", "@geometry.double")],
    "no decorator": [("train.py", "@geometry.doubled\n", "")],
    "a decorator's inside": [("lib/shapes.py", "2 * f", "3 * f")],
    "an entry of a dict": [("lib/words.py", "'sum'", "'total'")],
    "one more entry": [("lib/words.py", "'sum': sum_up", "'sum': sum_up, 'most': max")],
    "another base": [
        ("lib/models.py", "Base(Above)", "Base(Below)"),
        ("lib/models.py", "class Base", "class Below:\n    pass\nclass Base"),
    ],
    "no base": [("lib/models.py", "Base(Above)", "Base")],
    "one more method": [("lib/models.py", "    sides", "    def forward(self, x):\n        return x\n    sides")],
    "the order of fields": [("train.py", "    width: int = 4\n    depth = 8\n", "    depth = 8\n    width: int = 4\n")],
    "an import in a function": [("lib/late.py", "lib.slow import", "lib.shapes import SIDES as")],
    "another module that is tried first": [("lib/late.py", "fast", "faster")],
    "an iterable of a comprehension": [("train.py", '"ab"', '"abc"')],
    "a constant with a name": [("train.py", "int = 4", "int = FOUR"), ("train.py", "RATE,", "FOUR = 4\nRATE,")],
    "a statement that defines nothing": [("helper.py", "FACTOR = 12", "FACTOR = 12\nprint(FACTOR)")],
    "a definition that is changed at import": [("lib/slow.py", "17\n", "17\nfrom lib import Base\nBase.x = 1\n")],
    "a file that is only imported": [
        ("train.py", "import helper\n", "import helper\nimport patch\n"),
        ("patch.py", "", "import math\nmath.tau = 7\n"),
    ],
    "a function registered by a decorator": [("lib/words.py", "def sum", """
@register
def hidden():
    pass
REGISTER = []
def register(f):
    REGISTER.append(f)
def sum""")],
    "a function registered with a package": [("lib/words.py", "def sum", """
import keras
@keras.register('hidden')
def hidden():
    pass
def sum""")],
}  # fmt: skip


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def changed(files: Mapping[str, str], edits: list[Edit]) -> dict[str, str]:
    made = dict(files)
    for name, old, new in edits:
        assert old in made.get(name, ""), (name, old)
        made[name] = made.get(name, "").replace(old, new, 1) if old else new
    return {name: text for name, text in made.items() if text}


def digest_at(folder: Path, files: Mapping[str, str], *names: str) -> str:
    return code_digest([root_at(written(folder, files) / "train.py", *(names or ("TASK",)), module="train")])


@pytest.mark.parametrize("edits", SAME.values(), ids=SAME)
def test_edits_that_change_no_result(tmp_path: Path, edits: list[Edit]) -> None:
    assert digest_at(tmp_path / "a", FILES) == digest_at(tmp_path / "b", changed(FILES, edits))


@pytest.mark.parametrize("edits", OTHER.values(), ids=OTHER)
def test_edits_that_may_change_results(tmp_path: Path, edits: list[Edit]) -> None:
    assert digest_at(tmp_path / "a", FILES) != digest_at(tmp_path / "b", changed(FILES, edits))


# Definitions that a careless reading of names would miss: each module's TASK must depend on the 5.
HIDDEN_TEXT = """
#: behind a comprehension's variable
import b
def TASK():
    [b for b in ()]
    return b.five()
#: in a comprehension's iterable
from b import five
def TASK():
    return [five for five in five()]
#: behind a local of a nested function
from b import five
def TASK():
    def g():
        five = 1
    return five()
#: behind a field of the class
from b import five
class S:
    five = 1
    def f(self):
        return five()
def TASK():
    return S().f()
#: declared global
from b import five
def TASK():
    five = 1
    def g():
        global five
        return five()
#: assigned within an expression
from b import five
later = (value := five())
def TASK():
    return value
#: bound by a loop at the top
from b import five
for value in (five,):
    pass
def TASK():
    return value()
#: tried first
try:
    from b import five as f
except ImportError:
    from os import getpid as f
def TASK():
    return f()
#: tried first in the function
def TASK():
    try:
        from b import five as f
    except ImportError:
        from os import getpid as f
    return f()
#: one of a condition's two
import os
if os.name == 'x':
    def f():
        pass
else:
    from b import five as f
def TASK():
    return f()
#: an attribute of a module as a value
import b
def TASK(name='five'):
    return getattr(b, name)()
#: in a package as a value
import pack
def TASK(name='five'):
    return getattr(pack.inside, name)()
#: by a string
import importlib
def TASK():
    return importlib.import_module('pack.inside').five()
#: by a string with a colon
NAME = 'b:five'
def TASK():
    return NAME
#: in globals
from b import five
def TASK(name='five'):
    return globals()[name]()
#: in sys.modules
import sys
from b import five
def TASK(name='five'):
    return getattr(sys.modules[__name__], name)()
#: of a subclass
import b
def TASK():
    return [each() for each in b.Base.__subclasses__()]
#: of a metaclass
import b
def TASK():
    return b.Meta.known
#: set at import
import b
class Net:
    pass
Net.forward = b.five
def TASK():
    return Net().forward()
#: called at import
import b
SEEN = []
HANDLE = SEEN.append(b.five)
def TASK():
    return SEEN
#: of a match
import b
def TASK(x):
    match x:
        case b.Base():
            return b.five()
#: as a default
from b import five
def TASK(f=five):
    return f()
#: in a lambda
from b import five
def TASK():
    return lambda x=1: five()
#: in a field's type
import b
class S:
    x: 'b.Fields | None' = None
def TASK():
    return S
#: in an annotation that calls
import b
def TASK(x: b.option(b.five) = 1):
    pass
#: in a class's body
from b import five
class S:
    five = five
def TASK():
    return S.five()
#: by an attribute of the module
import b
b.unknown = 1
def TASK():
    return b.unknown
#: in the docstring that is read
'''Usage: 5'''
def TASK():
    return __doc__
#: added up
VALUES = [1]
VALUES += [5]
def TASK():
    return VALUES
#: by a star
from b import *
def TASK():
    return five()
#: by dispatch
import functools
from b import five
@functools.singledispatch
def f(x):
    pass
@f.register
def _(x: int):
    return five()
def TASK(x):
    return f(x)
"""
HIDDEN = dict(part.split("\n", 1) for part in HIDDEN_TEXT.split("#: ")[1:])
HIDING = {
    "b.py": """
def five():
    return 5
class Base:
    pass
class Sub(Base):
    value = 5
class Meta(type):
    known = []
class Made(metaclass=Meta):
    value = 5
class Fields:
    value = 5
def option(x):
    return x
unknown = 5
""",
    "pack/__init__.py": "", "pack/inside.py": "def five():\n    return 5\n",
}  # fmt: skip


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_no_definition_hides(tmp_path: Path, text: str) -> None:
    files = {"train.py": text, **HIDING}
    six = {name: each.replace("5", "6") for name, each in files.items()}
    assert digest_at(tmp_path / "5", files) != digest_at(tmp_path / "6", six)


PINNED = {3: "317bb47fc7a99632"}  # by format


def test_another_digest_needs_another_format(tmp_path: Path) -> None:
    """Stores hold digests, and the user's cache what earlier versions read."""
    every = [FILES, *({"train.py": text, **HIDING} for text in HIDDEN.values())]
    digests = "".join(digest_at(tmp_path / str(number), files) for number, files in enumerate(every))
    assert hashlib.sha256(digests.encode()).hexdigest()[:16] == PINNED[FORMAT]


def test_two_definitions_of_one_name_are_not_confused(tmp_path: Path) -> None:
    text = "import a, b\ndef TASK():\n    return a.f() - b.f()\n"
    f = "def f():\n    return g()\ndef g():\n    return {}\n"
    files = {"train.py": text, "a.py": f.format(1), "b.py": f.format(2)}
    swapped = {**files, "train.py": text.replace("a.f() - b.f()", "b.f() - a.f()")}
    renamed = {
        "train.py": text.replace("import a, b", "import b as a, c as b"),
        "b.py": files["a.py"],
        "c.py": files["b.py"],
    }
    first = digest_at(tmp_path / "1", files)
    assert first != digest_at(tmp_path / "2", swapped) and first == digest_at(tmp_path / "3", renamed)


def test_a_script_counts_with_all_that_it_defines(tmp_path: Path) -> None:
    """Some packages, called without arguments, run any function of the script."""
    files = {
        "train.py": "import fire, helper\nfrom helper import more\ndef run():\n    return helper.less()\n"
        "def other():\n    return 3\nif __name__ == '__main__':\n    run()\n    fire.Fire()\n",
        "helper.py": "def more():\n    return 1\ndef less():\n    return 2\ndef not_used():\n    return 4\n",
    }
    moved = {
        "train.py": files["train.py"].replace("def run():\n    return helper.less()\n", "from helper import run\n"),
        "helper.py": files["helper.py"] + "def run():\n    return less()\n",
    }

    def digest(name: str, files: Mapping[str, str]) -> str:
        return code_digest([root_at(written(tmp_path / name, files) / "train.py")])

    first = digest("first", files)
    for number, counts in (("1", True), ("2", True), ("3", True), ("4", False)):
        edited = {name: text.replace(number, "7") for name, text in files.items()}
        assert (digest(number, edited) != first) is counts
    assert digest("moved", moved) == first


def test_files_that_are_not_python_count_by_their_bytes(tmp_path: Path) -> None:
    for name, text in (("train.sh", "# a comment\ntrue\n"), ("torn.py", "def (:  # a comment\n")):
        before = code_digest([root_at(written(tmp_path, {name: text}) / name)])
        written(tmp_path, {name: text.replace("a comment", "another")})
        assert code_digest([root_at(tmp_path / name)]) != before


def test_the_files_are_those_that_are_imported(tmp_path: Path) -> None:
    files = {**FILES, "unrelated.py": "", "lib/other.py": "", "experiments/readme.md": "", "numpy.txt": ""}
    found = files_of([root_at(written(tmp_path, files) / "train.py", "TASK", module="train")])
    assert {str(path.relative_to(tmp_path)) for path in found} == {*FILES}


def test_of_installed_packages_one_counts(tmp_path: Path) -> None:
    files = {"mine/__init__.py": "", "mine/train.py": "import other\nfrom mine import five\nTASK = [five.f, other.f]\n",
             "mine/five.py": "def f():\n    return 5\n", "other.py": "def f():\n    return 6\n"}  # fmt: skip
    root = root_at(written(tmp_path, files) / "mine/train.py", "TASK", module="mine.train", prefixes=[str(tmp_path)])
    first = code_digest([root])
    written(tmp_path, {"other.py": "def f():\n    return 7\n"})
    assert code_digest([root]) == first
    written(tmp_path, {"mine/five.py": "def f():\n    return 7\n"})
    assert code_digest([root]) != first


def test_a_users_module_may_have_the_name_of_one_of_ours(tmp_path: Path) -> None:
    files = {
        "train.py": "import model\nfrom experiments.errors import UserError\nTASK = [model.f, UserError]\n",
        "model.py": "def f():\n    return 5\n",
    }
    first = digest_at(tmp_path, files)
    assert digest_at(tmp_path, {**files, "model.py": "def f():\n    return 6\n"}) != first
    assert [path.name for path in files_of([root_at(tmp_path / "train.py", "TASK", module="train")])] == [
        "model.py",
        "train.py",
    ]


def test_a_damaged_cache_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = digest_at(tmp_path / "user", FILES)
    root = [root_at(tmp_path / "user/train.py", "TASK", module="train")]
    [cache] = (tmp_path / "cache" / "ablations").iterdir()
    for damage in (b"", b"{}", b"[1]", cache.read_bytes()[:-5], cache.read_bytes().replace(b"1", b"2")):
        cache.write_bytes(damage)
        assert code_digest(root) == first
    (tmp_path / "cache" / "ablations").chmod(0o500)
    assert code_digest(root) == first
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere")
    monkeypatch.chdir(tmp_path)
    assert code_digest(root) == first and not (tmp_path / "nowhere").exists()


def test_a_package_that_is_used_as_a_whole_counts_with_all_below_it(tmp_path: Path) -> None:
    """What is done with a module as an object cannot be known: each file of its package, and what these import."""
    files = {
        "train.py": "import lib\nimport tool\ndef TASK():\n    return [vars(lib), vars(tool)]\n",
        "lib/__init__.py": "A = 1\n", "lib/deep/__init__.py": "B = 2\n", "lib/deep/far.py": "import other\nC = 3\n",
        "tool.py": "D = 4\n", "other.py": "E = 5\ndef apart():\n    return E\n", "beside.py": "F = 6\n",
        "tool/data.py": "G = 7\n",
    }  # fmt: skip
    first = digest_at(tmp_path / "first", files)
    for name, counts in (("lib/__init__.py", True), ("lib/deep/__init__.py", True), ("lib/deep/far.py", True),
                         ("tool.py", True), ("beside.py", False), ("tool/data.py", False)):  # fmt: skip
        edited = {**files, name: files[name].replace("=", "= 10 +")}
        assert (digest_at(tmp_path / name.replace("/", "_"), edited) != first) is counts, name
    found = files_of([root_at(tmp_path / "first" / "train.py", "TASK", module="train")])
    assert {str(path.relative_to(tmp_path / "first")) for path in found} == {*files} - {"beside.py", "tool/data.py"}


def test_a_method_that_is_a_root_counts_with_what_it_calls_on_itself(tmp_path: Path) -> None:
    """Through the bases, and not the methods that nothing calls; one that is made at run time is the whole class."""
    files = {
        "lib.py": "class Above:\n    def helped(self):\n        return 1\n    def idle(self):\n        return 2\n",
        "train.py": "from lib import Above\n"
        "class T(Above):\n    rate = 3\n    def __init__(self):\n        self.x = 4\n"
        "    def run(self):\n        return self.helped() + self.rate\n    def unused(self):\n        return 5\n",
    }

    def digest(name: str, edited: Mapping[str, str], member: str) -> str:
        return code_digest([root_at(written(tmp_path / name, edited) / "train.py", f"T.{member}", module="train")])

    for member, counting in (("run", "134"), ("unused", "45"), ("made", "12345")):
        first = digest(f"{member}-first", files, member)
        for number in "12345":
            edited = {
                name: text.replace(f"return {number}", "return 7").replace(f"= {number}", "= 7")
                for name, text in files.items()
            }
            changed = digest(f"{member}-{number}", edited, member) != first
            assert changed or number not in counting, (member, number)
            assert not changed or number in counting or number == "3", (member, number)


def test_the_user_is_asked_for_no_file_that_is_this_programs(tmp_path: Path) -> None:
    files = {
        "train.py": "import helper\nfrom experiments.identity import digest\n"
        "def TASK():\n    return digest(helper.x)\n",
        "helper.py": "x = 1\n",
    }
    root = root_at(written(tmp_path, files) / "train.py", "TASK", module="train")
    assert [path.name for path in files_of([root])] == ["helper.py", "train.py"]
    ours = root_at(Path(identity.__file__), "digest", module="experiments.identity")
    assert files_of([ours]) == files_of([]) == ()
    digests = code_digests({"one": [root], "other": [ours], "both": [root, ours]})
    assert digests["both"] == digests["one"] == code_digest([root]), "what is reached twice counts once"
    assert digests["other"] == code_digest([ours]) != digests["one"]


def test_the_order_of_methods_is_no_change_and_that_of_other_statements_is(tmp_path: Path) -> None:
    """Of a class within a function too."""
    lines = [
        "        a = 1",
        "        b = a + 1",
        "        def f(self):\n            return 1",
        "        def g(self):\n            return 2",
    ]

    def digest(name: str, *order: int) -> str:
        body = "\n".join(lines[number] for number in order)
        text = f"def TASK(settings, context):\n    class Inner:\n{body}\n    return Inner().f() + Inner.b\n"
        return digest_at(tmp_path / name, {"train.py": text})

    first = digest("first", 0, 1, 2, 3)
    assert digest("methods", 0, 1, 3, 2) == first != digest("values", 1, 0, 2, 3)
