"""Who may import whom, that no framework is ever imported, and that every public name is there and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import dcpack
import dcpack.balancing
import dcpack.packing
import dcpack.scheduling
import dcpack.sharding

ROOT = Path(dcpack.__file__).parent


def module_name(path: Path) -> str:
    parts = ("dcpack", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}

# Command line and reports may use more than NumPy.
FRONT = ("dcpack.cli", "dcpack.__main__", "dcpack.demo", "dcpack.report", "dcpack.tuning")
LIBRARY = [name for name in MODULES if not name.startswith(FRONT)]


def test_the_walk_sees_the_library() -> None:
    # A guard: an empty walk would let all tests below pass.
    assert len(MODULES) >= 55
    assert {"dcpack", "dcpack.errors", "dcpack.scheduling.packing_aware", "dcpack.comm.communicator"} <= set(LIBRARY)


# ---- no framework ----------------------------------------------------------------------------------------------------

FRAMEWORKS = ["torch", "jax", "jaxlib", "torch_xla", "torch_npu", "mindspore", "tensorflow"]
FRONT_ONLY = ["absl", "tqdm", "ml_dtypes", "matplotlib"]

SCRIPT = """
import importlib, json, sys

tried = []

class Watch:
    # Sees every import that is tried, also those that fail or are caught.
    def find_spec(self, name, path=None, target=None):
        tried.append(name)
        return None

sys.meta_path.insert(0, Watch())
import numpy
before = set(sys.modules)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps({"tried": tried, "new": sorted(set(sys.modules) - before)}))
"""


def imports_of(modules: list[str]) -> tuple[set[str], set[str]]:
    """(top names that were tried, modules that are new beside NumPy's own) of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(modules)], capture_output=True, text=True, timeout=100, check=True
    )
    seen = json.loads(done.stdout)
    return {name.partition(".")[0] for name in seen["tried"]}, set(seen["new"])


def test_no_framework_is_ever_imported() -> None:
    tried, new = imports_of(LIBRARY)
    assert set(LIBRARY) <= new  # all of them did load
    assert not tried & {*FRAMEWORKS, *FRONT_ONLY}
    assert not [name for name in tried if name.startswith("dcpack_")]
    tops = {name.partition(".")[0] for name in new}
    assert tops - sys.stdlib_module_names - {"dcpack", "numpy"} == set()


def test_the_watch_sees_imports() -> None:
    tried, new = imports_of(["json.tool", "hypothesis"])
    assert {"hypothesis", "json"} <= tried
    assert "hypothesis" in new


# ---- who may import whom ---------------------------------------------------------------------------------------------

GROUND = {"errors", "_texts", "_checks", "_rebuilt"}
FORMS = GROUND | {"topology", "padding", "layout"}
PLAN_PARTS = {"_plan_faults", "_plan_files", "_plan_words"}
PLANNING = FORMS | {"bounds", "plans", *PLAN_PARTS, "cost", "packing", "balancing", "sharding"}
PLANNERS = PLANNING | {"scheduling", "api"}
EXECUTION = PLANNERS | {"comm", "exchange", "loss", "metrics"}
LOADING = EXECUTION | {"data", "export", "loader", "batched_data_dict"}

# Room (a module or package right under dcpack) -> rooms that it may import, itself aside. "dcpack" is the public face.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_texts": set(),
    "_checks": {"errors", "_texts"},
    "_rebuilt": set(),
    "_block_order": GROUND,
    "topology": GROUND | {"_block_order"},
    "padding": GROUND,
    "layout": GROUND,
    "plans": FORMS | PLAN_PARTS,
    **dict.fromkeys(PLAN_PARTS, FORMS),
    "bounds": FORMS,
    "cost": FORMS,
    "packing": FORMS,
    "balancing": FORMS,
    "sharding": FORMS,
    "scheduling": PLANNING,
    "api": PLANNING | {"scheduling"},
    "comm": GROUND | {"topology"},
    "data": FORMS,
    "export": FORMS,
    "exchange": PLANNERS | {"comm", "loss"},  # loss counts valid tokens and knows no exchange
    "loss": PLANNERS,
    "metrics": PLANNERS | {"exchange", "loss"},  # metrics of a step look at its batches
    "megatron": EXECUTION | {"export"},
    "loader": LOADING,
    "batched_data_dict": LOADING,
    "testing": LOADING | {"dcpack"},
    "report": LOADING,
    "demo": LOADING | {"report", "testing", "dcpack"},
    "tuning": LOADING | {"report"},
    "cli": LOADING | {"report", "testing", "demo", "tuning", "dcpack"},
    "__main__": {"cli"},
    "dcpack": LOADING | {"testing"},
}

# Names for annotations alone make no cycle: rooms of planning may name one another's types.
ALLOWED_FOR_TYPES = dict.fromkeys(PLANNING - FORMS, PLANNING)

# The algorithms of a family never import one another; what they share stands in the family's other modules.
ALGORITHMS = {
    "packing": {"next_fit", "first_fit", "first_fit_decreasing", "best_fit_decreasing", "concat_then_split"},
    "balancing": {"lpt", "karmarkar_karp"},
    "scheduling": {"in_order", "packing_aware", "dynamic_cp", "balanced", "local_gain", "uniform_cp"},
    "sharding": {"zigzag", "zigzag_per_row", "contiguous", "striped"},
}
REGISTRIES = {"packing": {"registry"}, "balancing": {"registry"}, "scheduling": {"driver"}, "sharding": {"indices"}}


class Import(NamedTuple):
    target: str
    for_types: bool
    line: int


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_in(source: str, module: str, is_package: bool) -> list[Import]:
    """All imports of `source`, inside functions too, as absolute names of modules."""
    found: list[Import] = []
    package = module if is_package else module.rpartition(".")[0]

    def visit(node: ast.AST, for_types: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, for_types, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([base] if base else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                found.append(Import(submodule if submodule in MODULES else base, for_types, node.lineno))
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            for child in node.body:
                visit(child, True)
            for child in node.orelse:
                visit(child, for_types)
        else:
            for child in ast.iter_child_nodes(node):
                visit(child, for_types)

    visit(ast.parse(source), False)
    return found


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "dcpack"


def wrong_imports(module: str, source: str, is_package: bool) -> list[str]:
    room, family = room_of(module), module.split(".")[1:]
    wrong = []
    for target, for_types, line in imports_in(source, module, is_package):
        top = target.partition(".")[0]
        if top.startswith("dcpack_"):
            wrong.append(f"{module}:{line} imports {target}, a back end")
        if top != "dcpack":
            continue
        other = room_of(target)
        allowed = ALLOWED[room] | (ALLOWED_FOR_TYPES.get(room, set()) if for_types else set())
        if other != room and other not in allowed:
            wrong.append(f"{module}:{line} imports {target}")
        if other == room and room in ALGORITHMS and len(family) >= 2 and family[1] not in REGISTRIES[room]:
            sibling = target.split(".")[2:]
            if not sibling or sibling[0] in ALGORITHMS[room] | REGISTRIES[room]:
                wrong.append(f"{module}:{line} imports its sibling {target}")
    return wrong


def test_every_algorithm_is_in_the_table() -> None:
    schedulers = set(dcpack.scheduling.SCHEDULERS)
    assert schedulers <= ALGORITHMS["scheduling"]
    assert set(dcpack.packing.PACKERS) <= ALGORITHMS["packing"]
    assert set(dcpack.balancing.BALANCERS) == ALGORITHMS["balancing"]
    assert set(dcpack.sharding.SHARDINGS) == ALGORITHMS["sharding"]
    assert all(f"dcpack.{room}.{name}" in MODULES for room, names in ALGORITHMS.items() for name in names)


def test_every_room_is_in_the_table() -> None:
    assert {room_of(module) for module in MODULES} <= set(ALLOWED)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down_only(module: str) -> None:
    path = MODULES[module]
    assert wrong_imports(module, path.read_text(), path.name == "__init__.py") == []


def test_the_table_itself_has_no_cycle() -> None:
    # demo and cli may know everything; below them each room may only import rooms that cannot import it.
    rooms = set(ALLOWED) - {"dcpack", "cli", "demo", "__main__", "testing", "loader", "batched_data_dict"}
    for room in sorted(rooms):
        for other in sorted(ALLOWED[room] & rooms):
            assert room not in ALLOWED[other] or room == other, (room, other)


@pytest.mark.parametrize(
    ("module", "source", "is_wrong"),
    [
        ("dcpack.packing.first_fit", "from dcpack.comm import Communicator", True),
        ("dcpack.packing.first_fit", "def f():\n    import dcpack.comm.dtypes", True),
        ("dcpack.packing.first_fit", "from dcpack.packing.next_fit import next_fit", True),
        ("dcpack.packing.first_fit", "from .next_fit import next_fit", True),
        ("dcpack.packing.first_fit", "from . import next_fit", True),
        ("dcpack.packing.first_fit", "from dcpack.packing import next_fit", True),
        ("dcpack.packing.first_fit", "from .. import comm", True),
        ("dcpack.packing.first_fit", "from dcpack import pack", True),
        ("dcpack.packing.first_fit", "from dcpack.packing.base import Bins", False),
        ("dcpack.packing.first_fit", "from dcpack.errors import ArgumentError\nimport numpy, json", False),
        ("dcpack.packing.registry", "from dcpack.packing.next_fit import next_fit", False),
        ("dcpack.scheduling.in_order", "from dcpack.packing.next_fit import next_fit", False),
        ("dcpack.scheduling.in_order", "from dcpack.scheduling.packing_aware import PackingAware", True),
        ("dcpack.topology", "from dcpack.padding import PaddingRule", True),
        ("dcpack.plans", "from dcpack.cost import CostModel", True),
        ("dcpack.plans", "if TYPE_CHECKING:\n    from dcpack.cost import CostModel", False),
        ("dcpack.plans", "if TYPE_CHECKING:\n    from dcpack.comm import Communicator", True),
        ("dcpack.comm.fake", "from dcpack.packing import pack", True),
        ("dcpack.comm.fake", "import dcpack_torch.gloo", True),
        ("dcpack.exchange.routes", "from dcpack.plans import Plan\nfrom dcpack.comm import Communicator", False),
        ("dcpack.data.tokens", "from dcpack.plans import Plan", True),
        ("dcpack.report.tables", "import dcpack.cli", True),
        ("dcpack.cli", "from dcpack.demo import run\nimport dcpack", False),
        ("dcpack.demo.run", "from dcpack.cli import main", True),
    ],
)
def test_the_walk_tells_right_from_wrong(module: str, source: str, is_wrong: bool) -> None:
    assert bool(wrong_imports(module, source, False)) is is_wrong


# ---- public names ----------------------------------------------------------------------------------------------------


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


PUBLIC = [name for name in LIBRARY if "__all__" in MODULES[name].read_text()]


def constants_with_docs(path: Path) -> set[str]:
    """Names that are assigned at the top of a module with a string right behind."""
    body = ast.parse(path.read_text()).body
    documented = set()
    for node, following in itertools.pairwise(body):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_text:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            documented |= {target.id for target in targets if isinstance(target, ast.Name)}
    return documented


def is_documented(module: str, name: str) -> bool:
    value = getattr(load(module), name)
    if inspect.isclass(value) or inspect.isfunction(value):
        text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
        return bool(text) and not str(text).startswith(f"{name}(")  # what dataclass makes up is no documentation
    return any(name in constants_with_docs(path) for other, path in MODULES.items() if other.startswith(module))


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_exist_and_are_documented(module: str) -> None:
    names = load(module).__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(load(module), name)] == []
    assert [name for name in names if not is_documented(module, name)] == []


def test_every_package_of_algorithms_says_what_is_public() -> None:
    families = ("balancing", "cost", "packing", "scheduling", "sharding")
    for name in (*families, "batched_data_dict", "comm", "exchange", "export", "loader", "megatron"):
        assert f"dcpack.{name}" in PUBLIC


def test_every_module_is_documented() -> None:
    assert [name for name in MODULES if not ast.get_docstring(ast.parse(MODULES[name].read_text()))] == []


def test_no_file_is_longer_than_a_reader_has_patience() -> None:
    files = [*MODULES.values(), *sorted((ROOT.parent / "backends").rglob("*.py"))]
    assert len(files) > len(MODULES) + 30
    lengths = {str(path.relative_to(ROOT.parent)): len(path.read_text().splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def sort_key(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """The order of ruff's RUF022: constants, classes, the rest; numbers inside names count as numbers."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    parts = [part for part in re.split(r"(\d+)", name) if part]
    return kind, [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def test_the_public_face_is_short_and_sorted() -> None:
    names = dcpack.__all__
    assert names == sorted(names, key=sort_key)
    assert 15 <= len(names) <= 45
    assert {"pack", "balance", "plan", "Plan", "PaddingRule", "Topology"} <= set(names)


def test_the_public_face_holds_imports_and_nothing_else() -> None:
    body = ast.parse(MODULES["dcpack"].read_text()).body
    kinds = [type(node).__name__ for node in body[1:]]  # behind the docstring
    assert set(kinds) <= {"ImportFrom", "Assign"}
    assert kinds.count("Assign") == 1
    imported = {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {"annotations"} == set(dcpack.__all__)
