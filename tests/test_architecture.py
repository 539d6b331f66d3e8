"""The house rules, read from the syntax trees: who imports whom, who writes, who prints, how long things get."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import swivel

ROOT = Path(swivel.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LONGEST_FUNCTION, LONGEST_FILE = 60, 400

# From the ground up. A room imports from lower layers, and in its own layer from the rooms named beside it.
LAYERS: list[tuple[str, dict[str, set[str]]]] = [
    (
        "ground",
        {
            "_version": set(),
            "errors": set(),
            "config": {"errors"},
            "progress": set(),
            "resources": {"errors"},
            "means": {"errors", "config", "progress", "resources"},
            "needs": {"errors", "progress", "resources"},
            "interrupts": set(),
            "npy": set(),
            "tensors": set(),
            "folders": {"errors", "npy", "_version"},
            "locks": set(),
            "ordered": set(),
            "storage": {"errors", "folders", "locks", "_version"},
        },
    ),
    (
        "data",
        {
            "vocabulary": set(),
            "marks": set(),
            "corpus": {"vocabulary", "marks"},
            "matrix": {"vocabulary"},
            "counting": {"vocabulary", "marks", "matrix"},
            "importers": {"vocabulary", "matrix", "corpus", "counting"},
        },
    ),
    ("maths", {"objective": set()}),
    ("results", {"vectors": set(), "schedule": set(), "backends": {"schedule"}, "checkpoint": set()}),
    (
        "uses",
        {
            "evaluation": set(),
            "drift": {"formats"},
            "baselines": set(),
            "formats": set(),
            "plots": {"evaluation"},
            "pages": {"plots"},
            "tensorboard": set(),
            "planning": set(),
            "workers": {"planning"},
            "initial": set(),
            "joining": {"initial"},
            "measuring": set(),
            "training": {"planning", "initial", "workers", "measuring"},
            "cluster": {"planning", "workers"},
            "folding": set(),
        },
    ),
    (
        "whole",
        {
            "numbering": set(),
            "making": set(),
            "reporting": set(),
            "pipeline": {"numbering", "making", "reporting"},
            "sample": {"pipeline"},
            "extending": {"pipeline"},
            "describe": set(),
            "reproduce": {"pipeline"},
        },
    ),
    (
        "faces",
        {
            "cli": {"explorer"},
            "explorer": set(),
            "estimator": set(),
            "__init__": {"estimator"},
            "__main__": {"cli"},
        },
    ),
]
HEIGHTS = {room: height for height, (_, rooms) in enumerate(LAYERS) for room in rooms}
NEIGHBOURS = {room: beside for _, rooms in LAYERS for room, beside in rooms.items()}
# A backend sees arrays, never folders; vectors are read without training; the loss knows no block.
FORBIDDEN = {
    "backends": {"matrix", "storage", "folders", "checkpoint", "vocabulary"},
    "objective": {"matrix", "vocabulary", "storage", "folders"},
    "schedule": {"matrix", "vocabulary", "storage", "folders", "config", "objective"},
    "vectors": {"matrix", "corpus", "counting", "objective"},
}
# Who may import which library.
KNOWN_TO = {
    "numba": {"backends", "corpus", "counting", "matrix"},
    "llvmlite": {"backends", "corpus", "counting", "matrix"},
    "torch": {"backends", "cluster", "counting", "folding", "joining", "tensorboard"},
    "tensorboard": {"tensorboard"},
    "triton": {"backends", "counting"},
    "ray": {"cluster"},
    "fsspec": {"corpus"},
    "gensim": {"baselines", "formats"},
    "matplotlib": {"plots"},
    "pooch": {"evaluation"},
    "sklearn": {"estimator", "evaluation", "explorer"},
    "fastapi": {"explorer"},
    "uvicorn": {"explorer"},
    "umap": {"explorer"},
    "click": {"cli"},
    "rich": {"cli"},
    # Who may use the network at all; names of machines are asked for through `socket`, too.
    "socket": {"cluster", "explorer", "interrupts", "locks", "storage"},
    **{name: set() for name in ("ftplib", "http", "httpx", "huggingface_hub", "requests", "smtplib", "urllib")},
}
HEAVY = ("ray", "torch", "numba", "llvmlite", "scipy", "click", "rich", "safetensors", "matplotlib", "fastapi", "umap")

WRITERS = {"write_text", "write_bytes", "touch", "unlink", "rmdir", "rename", "symlink_to", "hardlink_to", "rmtree"}
WRITERS |= {"copyfile", "copytree", "copy2", "move", "remove", "removedirs", "truncate", "tofile", "open_memmap"}
WRITERS |= {
    "save",
    "savez",
    "savez_compressed",
    "savetxt",
    "save_file",
    "NamedTemporaryFile",
    "TemporaryFile",
    "mkstemp",
}
# `replace` and `remove` are also methods of texts and lists, `save` of our own classes.
ONLY_OF_MODULES = {"remove": {"os"}, "move": {"shutil"}, "save": {"np", "numpy", "torch"}, "rename": {"os"}}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
OUR_WRITERS = {"folder", "_folder", "writer"}  # a `storage.FolderWriter`, which has methods of the same names


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def modules_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything imported, at the top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            if node.module == "swivel":
                yield from ((node.lineno, f"swivel.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, str(node.module)


def rooms_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, module in modules_imported(tree):
        first, _, rest = module.partition(".")
        if first == "swivel":
            room = rest.partition(".")[0]
            yield line, room if room in HEIGHTS or (ROOT / room).exists() else "__init__"


def import_is_allowed(room: str, other: str) -> bool:
    if other in FORBIDDEN.get(room, set()):
        return False
    return room == other or HEIGHTS[other] < HEIGHTS[room] or other in NEIGHBOURS[room]


def last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def opens_for_writing(call: ast.Call) -> bool:
    if call.args and last_name(call.args[0]) == "devnull":
        return False  # nowhere is no file
    if any(last_name(node) in WRITING_FLAGS for node in ast.walk(call)):
        return True
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Name):
        arguments = arguments[1:]  # the name of the file
    texts = [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return any(re.fullmatch(r"[rwaxbt+]{1,4}", text) and set(text) & set("wax+") for text in texts)


def writing_calls(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that open files for writing, or make, rename or remove them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = last_name(node.func)
        owner = last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name == "open" and opens_for_writing(node):
            yield node.lineno
        if name in WRITERS and owner not in OUR_WRITERS and owner in ONLY_OF_MODULES.get(name, {owner}):
            yield node.lineno


def printing_calls(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "input"):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr") and last_name(node.value) == "sys":
            yield node.lineno


def long_functions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{node.name}: {lines} lines"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_room_has_a_place_and_imports_go_down_only(file: Path) -> None:
    room = room_of(file)
    assert room in HEIGHTS, f"{room} has no place in LAYERS"
    wrong = [
        f"line {line}: {other}" for line, other in rooms_imported(tree_of(file)) if not import_is_allowed(room, other)
    ]
    assert not wrong


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_libraries_are_known_to_their_rooms_only(file: Path) -> None:
    wrong = [
        f"line {line}: {module}"
        for line, module in modules_imported(tree_of(file))
        if room_of(file) not in KNOWN_TO.get(module.partition(".")[0], {room_of(file)})
    ]
    assert not wrong


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) != "storage"], ids=name_of)
def test_only_storage_writes(file: Path) -> None:
    assert not list(writing_calls(tree_of(file)))


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) != "cli"], ids=name_of)
def test_only_the_command_line_prints(file: Path) -> None:
    assert not list(printing_calls(tree_of(file)))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_fit_a_screen_and_files_a_room(file: Path) -> None:
    assert not list(long_functions(tree_of(file)))
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_module_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(tree_of(file))


@pytest.mark.parametrize("file", [file for file in FILES if file.name == "__init__.py"], ids=name_of)
def test_what_a_room_exports_is_there(file: Path) -> None:
    module = importlib.import_module(".".join(["swivel", *file.parent.relative_to(ROOT).parts]))
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), name


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("swivel", HEAVY), ("swivel.vectors", ("torch", "numba", "llvmlite", "scipy", "click", "rich"))],
)
def test_importing_loads_nothing_heavier_than_numpy(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(done.stdout.split()) & set(heavy)


@pytest.mark.parametrize(
    "code",
    [
        "open('f', 'w')",
        "open('f', mode='a')",
        "path.open('xb')",
        "path.open('r+')",
        "gzip.open(path, 'wt')",
        "path.write_text('x')",
        "path.unlink(missing_ok=True)",
        "shutil.rmtree(path)",
        "os.remove(path)",
        "np.save(path, array)",
        "np.savez(path, array)",
        "array.tofile(path)",
        "np.lib.format.open_memmap(path, mode='w+')",
        "os.open(path, os.O_CREAT | os.O_EXCL)",
        "tempfile.NamedTemporaryFile()",
    ],
)
def test_writing_is_recognised(code: str) -> None:
    assert list(writing_calls(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "open('a')",
        "open('w', 'rb')",
        "path.open('rb', buffering=0)",
        "text.replace('w', 'a')",
        "names.remove('w')",
        "vectors.save(path)",
        "folder.write_bytes('part', data)",
        "os.open(path, os.O_RDONLY)",
        "os.open(os.devnull, os.O_WRONLY)",
        "codecs.open(path, encoding='utf-8')",
    ],
)
def test_reading_is_not_taken_for_writing(code: str) -> None:
    assert not list(writing_calls(ast.parse(code)))


@pytest.mark.parametrize("code", ["print(1)", "sys.stdout.write('x')", "print(1, file=sys.stderr)"])
def test_printing_is_recognised(code: str) -> None:
    assert list(printing_calls(ast.parse(code)))


@pytest.mark.parametrize(
    ("room", "other", "expected"),
    [
        ("matrix", "vocabulary", True),
        ("vocabulary", "matrix", False),
        ("corpus", "matrix", False),
        ("backends", "objective", True),
        ("backends", "storage", False),
        ("vectors", "training", False),
        ("training", "evaluation", False),
        ("storage", "__init__", False),
        ("cli", "pipeline", True),
        ("pipeline", "cli", False),
    ],
)
def test_directions_are_told_apart(room: str, other: str, expected: bool) -> None:
    assert import_is_allowed(room, other) is expected


def test_imports_inside_functions_and_of_the_package_itself_are_seen() -> None:
    code = "def f():\n    from swivel import cli\n    import swivel.training.loop\nfrom swivel import __version__"
    assert sorted(room for _, room in rooms_imported(ast.parse(code))) == ["__init__", "cli", "training"]
