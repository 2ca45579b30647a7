"""Compare the pinned versions with the advisories of the package index, by pip-audit.

    python supply/audit.py constraints.txt

pip-audit has no database of its own: it asks for every package. Packages that were not answered for are named, and an
audit that got no answer at all fails, as it would otherwise look like a clean one.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit."""

    audited: int
    skipped: tuple[str, ...]  # packages without an answer
    advisories: tuple[str, ...]  # in words

    @property
    def code(self) -> int:
        """0 clean, 1 advisories, 2 no answers."""
        return 1 if self.advisories else 0 if self.audited else 2


def judge(found: dict[str, Any]) -> Audit:
    """Read the JSON of pip-audit."""
    packages = found["dependencies"]
    return Audit(
        audited=sum("skip_reason" not in each for each in packages),
        skipped=tuple(each["name"] for each in packages if "skip_reason" in each),
        advisories=tuple(_in_words(each, advisory) for each in packages for advisory in each.get("vulns", ())),
    )


def _in_words(package: dict[str, Any], advisory: dict[str, Any]) -> str:
    fixed = ", ".join(advisory["fix_versions"]) or "no version"
    return f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}"


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json", "-r", *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        audit = judge(json.loads(done.stdout))
    except ValueError:
        print(f"pip-audit failed: {done.stderr.strip().rpartition(chr(10))[2]}", file=sys.stderr)
        return 2
    if audit.code == 2:
        print("Nothing was audited: the package index has no advisories. Try again with another one.", file=sys.stderr)
        return audit.code
    print("\n".join(audit.advisories) or "No advisories.")
    print(
        f"{audit.audited:,} packages were audited, {len(audit.skipped):,} were not{': ' if audit.skipped else '.'}",
        end="",
    )
    print(", ".join(audit.skipped))
    return audit.code


if __name__ == "__main__":
    sys.exit(main())
