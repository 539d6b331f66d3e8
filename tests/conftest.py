"""What several test files share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec

if TYPE_CHECKING:
    from ray_cluster import TwoNodes
    from step_contract import Maker
    from swivel.runtime.options import RunOptions
    from swivel.training.backends import Backend, BackendSettings

GROUPS, WORDS = 6, 60

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Kernels run in Triton's interpreter; it is asked for before Triton is first imported, or not at all.
    os.environ["TRITON_INTERPRET"] = "1"

# On a busy machine an example may take any time. Tests of the marker `oracle` compare with independent implementations;
# `make oracles` runs them with more examples. A slow one takes a share of them in both:
# @settings(max_examples=settings.default.max_examples // 5).
settings.register_profile("swivel", deadline=None)
settings.register_profile("oracles", deadline=None, max_examples=int(os.environ.get("EXAMPLES") or 5_000))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "swivel"))

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))  # files of tests are no package: this is how they share a module
pytest.register_assert_rewrite("step_contract", "device_counts", "tolerances")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="N/M", help="run every M-th test, beginning with number N (from 0)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of one shard: neighbors, which are often as slow as each other, go to different processes."""
    shard = config.getoption("--shard")
    if shard is not None:
        number, shards = map(int, shard.split("/"))
        items[:] = items[number::shards]


def find_groups() -> dict[str, str]:
    """Return the group of each file of tests that says one."""
    said = ((file.name, re.search(r'xdist_group\("(\w+)"\)', file.read_text())) for file in TESTS.rglob("test_*.py"))
    return {name: found[1] for name, found in said if found}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give all tests of a group to one process, which starts one cluster for them; the others go anywhere.

    `--dist loadgroup` is for that, but xdist 3.8 writes the groups where pytest 9.2 does not look any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    groups = find_groups()

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return groups.get(nodeid.partition("::")[0].rpartition("/")[2], nodeid)

    return ByGroup(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not HAS_GPU:
        pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def same_torch_threads() -> Iterator[None]:
    """Restore torch's number of threads after each test, because the bits of its products depend on it.

    A test that fails, or that holds two backends at once, may leave another number behind. Set OMP_NUM_THREADS to run
    all tests with another number: torch and numpy read it, in child processes too.
    """
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def build_planted(path: Path) -> Matrix:
    """Build 60 words in 6 groups that co-occur inside their groups, and two that occur with nobody.

    Word n is of group n % 6. Common words come first, as everywhere.
    """
    rng = np.random.default_rng(11)
    frequency = 40 / np.sqrt(1 + np.arange(WORDS))
    mean = np.outer(frequency, frequency) / 40
    same = np.arange(WORDS)[:, None] % GROUPS == np.arange(WORDS) % GROUPS
    counts = np.triu(rng.poisson(np.where(same, 4 * mean, 0.05 * mean)))
    counts = counts + np.triu(counts, 1).T
    rows, columns = np.nonzero(counts)
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(WORDS + 2)]), symmetric=True)
    with MatrixBuilder(path, spec, memory_bytes=1 << 20) as builder:
        builder.add(rows, columns, counts[rows, columns])
        return builder.finish()


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return build_planted(tmp_path_factory.mktemp("planted") / "matrix")


@pytest.fixture(scope="session")
def share_of_own_group() -> Callable[[np.ndarray], float]:
    """A function that gives the share of words' 5 nearest neighbors that are of the word's own group."""

    def share(vectors: np.ndarray) -> float:
        unit = vectors[:WORDS] / np.linalg.norm(vectors[:WORDS], axis=1, keepdims=True)
        cosines = unit @ unit.T
        np.fill_diagonal(cosines, -2)
        nearest = np.argsort(-cosines, axis=1)[:, :5]
        return float((nearest % GROUPS == np.arange(WORDS)[:, None] % GROUPS).mean())

    return share


@pytest.fixture(scope="module")
def ran_stages() -> Iterator[list[str]]:
    """The names of the stages of experiments that ran: their jobs run in this process instead of their own."""
    from experiments import stages

    names: list[str] = []

    def run_here(name: str, job: stages.Job, arguments: tuple[Any, ...], options: RunOptions) -> stages.Measure:
        names.append(name)
        job(*arguments, options=options)
        return stages.Measure(2.5, 1 << 20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "run_in_process", run_here)
        yield names


@pytest.fixture(scope="session")
def has_bfloat16() -> bool:
    """Whether bfloat16 products run here: asked in a process of its own, for they may kill the one that tries."""
    product = "import torch; a = torch.ones(64, 300, dtype=torch.bfloat16); a @ a.T"
    return subprocess.run([sys.executable, "-c", product], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[TwoNodes]:
    """A cluster of two nodes; who uses it is marked `xdist_group("ray")`."""
    from ray_cluster import start_nodes

    with start_nodes() as nodes:
        yield nodes


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest) -> Iterator[Maker]:
    """What makes backends of a kind that a test is parametrized with, such as `cpu float32`."""
    from step_contract import create, split_kind

    _, device, dtype = split_kind(kind)
    if dtype == "bfloat16" and device == "cpu" and not request.getfixturevalue("has_bfloat16"):
        pytest.skip("bfloat16 products do not run on this machine")
    made: list[Backend] = []

    def make_backend(settings: BackendSettings) -> Backend:
        made.append(create(kind, settings))
        return made[-1]

    yield make_backend
    for backend in made:
        backend.close()
