"""The kernels compile for real GPUs (no GPU is needed), and their shared memory is within the limits of the devices.

They are compiled in a separate process, because Triton does not compile when its interpreter is on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux")

COMPILE = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from swivel.training.backends.triton import hopper, step_kernels

KINDS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
INTEGERS = "tiles_m tiles_n items pairs shards apart0 apart1 slot_count steps".split()
TYPES = {"table": "*i64", "starts": "*i64", "slots": "*i16", "positions": "*i16", "counter": "*i32", "totals": "*fp64"}
TYPES |= {name: "i32" for name in INTEGERS}
TYPES |= {name: "fp32" for name in ("unseen", "base", "scale", "power")}
TYPES |= {name: "fp32" for name in ("weight_decay", "learning_rate")}
TYPES |= {name: "fp32" for name in ("decay_power", "unit0", "unit1")}


def compile_kernel(source, kernel, types, constants, capability, **options):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n, t in signature.items() if t.startswith("*")}
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    kernel_source = source(kernel, signature, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(kernel_source, target=GPUTarget("cuda", capability, 32), options=options)
    return {"shared": compiled.metadata.shared, "uses": [u for u in ("wgmma", "mma.sync") if u in compiled.asm["ptx"]]}


def compile_hopper():
    flags = hopper.choose_flags(torch.bfloat16, 320)
    options = {name: flags.pop(name) for name in ("num_warps", "maxnreg")}
    types = TYPES | {"G": "*bf16", "rows": f"tensordesc<bf16[128, 64],{hopper.ROWS!r}>"}
    types["columns"] = f"tensordesc<bf16{list(hopper.COLUMNS_SHAPE)!r},{hopper.COLUMNS!r}>"
    return compile_kernel(GluonASTSource, hopper.gradient, types, flags, 90, **options)


def compile_plain(name, capability, **constants):
    types = TYPES | {"V": "*bf16", "G": "*bf16", "gradients": "*bf16"}
    return compile_kernel(ASTSource, getattr(step_kernels, name), types, constants, capability)


RULES = {"SQRT": True, "FAST": True}
OTHERS = {"SQRT": False, "FAST": True}
TILE = {"P": 320, "BM": 64, "BN": 128, "BK": 64, "CHUNK": 256, "GROUP": 8, "STAGES": 2, "PRECISION": "tf32"}
UPDATE = {"D": 300, "P": 320, "PP": 512, "ROWS": 4, "SIZE": 1024}
print(json.dumps({
    "hopper": compile_hopper(),
    "gradient on Ampere": compile_plain("gradient", 80, **TILE, **RULES),
    "gradient": compile_plain("gradient", 90, **TILE, **RULES),
    "gradient, power": compile_plain("gradient", 90, **TILE, **OTHERS),
    "find_starts": compile_plain("find_starts", 90, BLOCK=128),
    "update": compile_plain("update", 90, DECAY=0.9, BY_SUM=False, **UPDATE),
    "update, decay by sum": compile_plain("update", 90, DECAY=None, BY_SUM=True, **UPDATE),
}))
"""
MAX_SHARED_BYTES = {"gradient on Ampere": 163 << 10}


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, object]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]

    results: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return results


def test_kernels_fit_the_shared_memory_of_their_devices(compiled: dict[str, dict[str, object]]) -> None:
    for name, result in compiled.items():
        assert int(str(result["shared"])) <= MAX_SHARED_BYTES.get(name, 227 << 10), name


def test_products_use_the_tensor_cores(compiled: dict[str, dict[str, object]]) -> None:
    assert compiled["hopper"]["uses"] == compiled["gradient"]["uses"] == ["wgmma"]
    assert compiled["gradient on Ampere"]["uses"] == ["mma.sync"]
