"""Rules of the code base, read from the syntax trees: imports, writing of files, printing, lengths, names."""

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
LONGEST_FUNCTION, LONGEST_FILE = 60, 600

# One order of imports. A module imports from its own package and from the packages above it in this list, never from
# those below. `counts/cooccurrence` counts on Ray, so the tools for Ray are in `runtime`.
PACKAGES = (
    "_version",
    "errors",
    "config",
    "runtime",
    "storage",
    "corpus",
    "counts",
    "vectors",
    "training",
    "evaluation",
    "recommender",
    "reports",
    "pipeline",
    "estimator",
    "explorer",
    "cli",
    "__init__",
    "__main__",
)
# Which packages may import which library.
KNOWN_TO = {
    "numba": {"training", "corpus", "counts", "runtime"},
    "llvmlite": {"training", "corpus", "counts"},
    "torch": {"training", "counts", "runtime", "vectors"},
    "tensorboard": {"runtime"},
    "triton": {"training", "counts"},
    "ray": {"runtime", "counts", "training"},
    "fsspec": {"corpus"},
    "gensim": {"vectors"},
    "networkx": {"counts"},
    "matplotlib": {"reports"},
    "pooch": {"evaluation"},
    "sklearn": {"estimator", "evaluation", "explorer"},
    "fastapi": {"explorer"},
    "uvicorn": {"explorer"},
    "click": {"cli"},
    "rich": {"cli", "runtime"},
    "IPython": {"runtime"},
    # Packages that may use the network at all; `socket` also gives the name of the machine.
    "socket": {"training", "explorer", "runtime", "storage"},
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


def package_of(file: Path) -> str:
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


def packages_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, module in modules_imported(tree):
        first, _, rest = module.partition(".")
        if first == "swivel":
            package = rest.partition(".")[0]
            yield line, package if package in PACKAGES else "__init__"


def import_is_allowed(package: str, other: str) -> bool:
    return PACKAGES.index(other) <= PACKAGES.index(package)


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
        if name in WRITERS and owner in ONLY_OF_MODULES.get(name, {owner}):
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
            first = node.body[0]
            has_docstring = ast.get_docstring(node) is not None
            start = (first.end_lineno or first.lineno) if has_docstring else node.lineno  # Docstrings do not count.
            lines = (node.end_lineno or start) - start + 1
            if lines > LONGEST_FUNCTION:
                yield f"{node.name}: {lines} lines"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_follow_the_order_of_packages(file: Path) -> None:
    package = package_of(file)
    assert package in PACKAGES, f"{package} has no place in PACKAGES"
    wrong = [
        f"line {line}: {other}"
        for line, other in packages_imported(tree_of(file))
        if not import_is_allowed(package, other)
    ]
    assert not wrong


def test_there_are_few_entries_at_the_top() -> None:
    entries = [path for path in ROOT.iterdir() if path.name not in ("__pycache__", "data", "py.typed")]
    assert len([path for path in entries if not path.name.startswith("_")]) <= 15


def test_class_names_have_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(name_of(file))
    assert not {name: files for name, files in homes.items() if len(files) > 1}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_libraries_are_imported_by_their_packages_only(file: Path) -> None:
    wrong = [
        f"line {line}: {module}"
        for line, module in modules_imported(tree_of(file))
        if package_of(file) not in KNOWN_TO.get(module.partition(".")[0], {package_of(file)})
    ]
    assert not wrong


@pytest.mark.parametrize("file", [file for file in FILES if package_of(file) != "storage"], ids=name_of)
def test_only_storage_writes(file: Path) -> None:
    assert not list(writing_calls(tree_of(file)))


@pytest.mark.parametrize("file", [file for file in FILES if package_of(file) != "cli"], ids=name_of)
def test_only_the_command_line_prints(file: Path) -> None:
    assert not list(printing_calls(tree_of(file)))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_and_files_are_not_too_long(file: Path) -> None:
    assert not list(long_functions(tree_of(file)))
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_module_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(tree_of(file))


@pytest.mark.parametrize("file", [file for file in FILES if file.name == "__init__.py"], ids=name_of)
def test_what_a_package_exports_is_there(file: Path) -> None:
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
def test_writing_is_recognized(code: str) -> None:
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
        "folder.write_array('part', data)",
        "os.open(path, os.O_RDONLY)",
        "os.open(os.devnull, os.O_WRONLY)",
        "codecs.open(path, encoding='utf-8')",
    ],
)
def test_reading_is_not_taken_for_writing(code: str) -> None:
    assert not list(writing_calls(ast.parse(code)))


@pytest.mark.parametrize("code", ["print(1)", "sys.stdout.write('x')", "print(1, file=sys.stderr)"])
def test_printing_is_recognized(code: str) -> None:
    assert list(printing_calls(ast.parse(code)))


@pytest.mark.parametrize(
    ("package", "other", "expected"),
    [
        ("counts", "corpus", True),
        ("corpus", "counts", False),
        ("training", "storage", True),
        ("vectors", "training", False),
        ("training", "evaluation", False),
        ("storage", "__init__", False),
        ("cli", "pipeline", True),
        ("pipeline", "cli", False),
    ],
)
def test_directions_are_told_apart(package: str, other: str, expected: bool) -> None:
    assert import_is_allowed(package, other) is expected


def test_imports_inside_functions_and_of_the_package_itself_are_seen() -> None:
    code = "def f():\n    from swivel import cli\n    import swivel.training.loop\nfrom swivel import __version__"
    assert sorted(package for _, package in packages_imported(ast.parse(code))) == ["__init__", "cli", "training"]
