"""Write the bill of materials of an installation: Sortal and every package it needs, as CycloneDX 1.6.

    python supply/sbom.py > sbom.json
    python supply/sbom.py --extra names --extra parquet

Packages are those of the environment this runs in; tools of development are left out unless their extra is named.
"""

import argparse
import json
import re
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

ROOT = "sortal"
Component = dict[str, Any]


def canonical(name: str) -> str:
    """Return the name under which the package index knows a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(package: Distribution, extras: Collection[str]) -> Iterator[Requirement]:
    """Yield what a package requires on this platform, with these of its extras."""
    for text in package.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def closure(root: str, extras: Collection[str]) -> tuple[dict[str, Distribution], dict[str, set[str]]]:
    """Return the packages that one needs, itself included, and what each of them requires directly.

    A requirement that is not installed is an error: the bill would be incomplete.
    """
    found: dict[str, Distribution] = {}
    edges: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        found[name] = distribution(name)
        for requirement in needed(found[name], wanted):
            other = canonical(requirement.name)
            edges.setdefault(name, set()).add(other)
            waiting.append((other, frozenset(requirement.extras)))
        edges.setdefault(name, set())
    return found, edges


def component(name: str, package: Distribution) -> Component:
    """Describe a package."""
    purl = f"pkg:pypi/{name}@{quote(package.version, safe='')}"
    kind = "application" if name == ROOT else "library"
    return {"type": kind, "bom-ref": purl, "name": name, "version": package.version, "purl": purl, **_licence(package)}


def _licence(package: Distribution) -> Component:
    about = package.metadata
    if expressions := about.get_all("License-Expression"):
        return {"licenses": [{"expression": expressions[0]}]}
    named = [
        text.rpartition("::")[2].strip() for text in about.get_all("Classifier") or () if text.startswith("License")
    ]
    return {"licenses": [{"license": {"name": name}} for name in named]} if named else {}


def bill(extras: Collection[str] = ()) -> dict[str, Any]:
    """Return the bill of materials."""
    found, edges = closure(ROOT, extras)
    described = {name: component(name, found[name]) for name in sorted(found)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": described[ROOT]},
        "components": [each for name, each in described.items() if name != ROOT],
        "dependencies": [
            {"ref": described[name]["bom-ref"], "dependsOn": [described[other]["bom-ref"] for other in sorted(others)]}
            for name, others in sorted(edges.items())
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", action="append", default=[], help="also what an extra of Sortal needs")
    try:
        found = bill(parser.parse_args().extra)
    except PackageNotFoundError as error:
        print(f"The package {error.name} is required but not installed. Install it, then try again.", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
