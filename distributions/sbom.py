"""List all that the wheels of ``dist/`` contain, with licences: a CycloneDX 1.6 document for each wheel.

    python distributions/sbom.py [--dist dist] [--output dist/sbom]

A component is the wheel itself, each shared library in it, and each licence file. A library that this project does not build
must be in `FOREIGN`, with its licence; otherwise the command fails. What a wheel requires of other packages is listed as
dependencies by name and range, since pip chooses their versions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import uuid
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("libtvm_sched", "libtriton_tvm_sched")
"""Beginnings of the names of libraries that this project builds."""
FOREIGN = {
    "libdnnl": ("oneDNN", "Apache-2.0", "https://github.com/uxlfoundation/oneDNN"),
    "libtvm_runtime": ("Apache TVM runtime", "Apache-2.0", "https://tvm.apache.org"),
    "libimf": ("functions of Intel's runtime, own code", "Apache-2.0", "cpp/kernels/intel_runtime"),
    "libsvml": ("functions of Intel's runtime, own code", "Apache-2.0", "cpp/kernels/intel_runtime"),
    "libintlc": ("functions of Intel's runtime, own code", "Apache-2.0", "cpp/kernels/intel_runtime"),
    "libirng": ("functions of Intel's runtime, own code", "Apache-2.0", "cpp/kernels/intel_runtime"),
    "libstdc++": ("GCC runtime", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org"),
    "libgcc_s": ("GCC runtime", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org"),
}
"""Other libraries that a wheel may hold, by the beginning of their names: product, SPDX licence, origin."""


def components(wheel: zipfile.ZipFile, version: str) -> list[dict[str, Any]]:
    """Return the libraries and licence files in a wheel.

    Raises
    ------
    ValueError
        A library that is neither ours nor listed.
    """
    found = []
    for name in sorted(wheel.namelist()):
        if name.endswith("/"):
            continue
        file = PurePosixPath(name)
        digest = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read(name)).hexdigest()}]
        if ".so" in file.suffixes or file.suffix == ".so":
            product, licence, origin = _origin(file.name)
            found.append({
                "type": "library", "name": name, "description": product, "hashes": digest,
                "version": version if product == "tvm_sched" else "as built",
                "licenses": [{"expression": licence}],
                "externalReferences": [{"type": "other", "url": origin}],
            })  # fmt: skip
        elif "licenses" in file.parts or file.name.startswith(("LICENSE", "NOTICE", "THIRD-PARTY")):
            found.append({"type": "file", "name": name, "description": "licence text", "hashes": digest})
    return found


def _origin(name: str) -> tuple[str, str, str]:
    if name.startswith(OURS):
        return "tvm_sched", "Apache-2.0", "cpp"
    for beginning, origin in FOREIGN.items():
        if name.startswith(beginning):
            return origin
    raise ValueError(f"{name} is in a wheel, but distributions/sbom.py does not say what it is: add it to FOREIGN")


def document(path: Path) -> dict[str, Any]:
    """Return the CycloneDX document of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        head = Parser().parsestr(wheel.read(metadata).decode())
        inside = components(wheel, head["Version"])
    licence = head["License-Expression"] or head["License"]
    if not licence:
        raise ValueError(f"{path.name} names no licence")
    reference = f"pkg:pypi/{head['Name']}@{head['Version']}"
    serial = uuid.uuid5(uuid.NAMESPACE_URL, hashlib.sha256(path.read_bytes()).hexdigest())
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": reference, "purl": reference, "name": head["Name"],
                "version": head["Version"], "licenses": [{"expression": licence}],
            },
        },
        "components": [
            *inside,
            *(
                {"type": "library", "scope": "optional" if "extra ==" in each else "required",
                 "name": each.partition(";")[0].strip(), "description": f"requirement: {each}"}
                for each in head.get_all("Requires-Dist") or ()
            ),
        ],
    }  # fmt: skip


def main() -> int:
    """Write a document for each wheel; status 1 if a wheel holds something unknown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: sbom in the folder of the wheels")
    options = parser.parse_args()
    wheels = sorted(options.dist.glob("*.whl"))
    if not wheels:
        print(f"{options.dist} has no wheels: run make wheels first", file=sys.stderr)
        return 2
    folder = options.output or options.dist / "sbom"
    folder.mkdir(parents=True, exist_ok=True)
    for path in wheels:
        try:
            made = document(path)
        except ValueError as error:
            print(f"error: {path.name}: {error}", file=sys.stderr)
            return 1
        file = folder / f"{path.name.split('-')[0]}.cdx.json"
        file.write_text(json.dumps(made, indent=2) + "\n")
        libraries = [each for each in made["components"] if "hashes" in each and each["type"] == "library"]
        print(f"{file}: {len(libraries)} libraries, {len(made['components']) - len(libraries)} other components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
