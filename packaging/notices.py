#!/usr/bin/env python3
"""Prints the notices of the crates that a crate of XDB contains. Further arguments are cargo's:
`packaging/notices.py xdb --no-default-features --features pg15`.

Their licenses ask for it wherever the library is passed on.
"""

import json
import subprocess
import sys
from pathlib import Path


def cargo(*arguments: str) -> str:
    return subprocess.run(["cargo", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    name, *features = sys.argv[1:]
    listed = cargo("tree", "-p", name, *features, "-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}").splitlines()
    wanted = {tuple(line.split()[:2]) for line in listed}
    print("This part of XDB contains the crates below. Each has its license, and the notices that come with its sources.")
    printed: dict[str, str] = {}
    packages = json.loads(cargo("metadata", "--format-version", "1", *features))["packages"]
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        # A crate of XDB itself has no source.
        if package["source"] is None or (package["name"], f"v{package['version']}") not in wanted:
            continue
        print(f"\n{'=' * 80}\n{package['name']} {package['version']}: {package['license']}")
        directory = Path(package["manifest_path"]).parent
        for file in sorted(directory.iterdir()):
            if file.is_file() and file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")):
                text = file.read_text(encoding="utf-8", errors="replace").strip()
                before = printed.get(" ".join(text.split()))
                print(f"\n--- {file.name}{f': as {before}' if before else ''}")
                if not before:
                    printed[" ".join(text.split())] = f"{file.name} of {package['name']}"
                    print(f"\n{text}")


if __name__ == "__main__":
    main()
