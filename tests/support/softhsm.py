"""Tokens of a real PKCS#11 library, SoftHSM2, in a folder of a test's own."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from support.tools import missing, require_tool

PIN = "pin-of-the-token"
LIBRARIES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so")
CURVES: dict[str, ec.EllipticCurve] = {"anna": ec.SECP256R1(), "ben": ec.SECP384R1()}


@dataclass(frozen=True)
class Tokens:
    """The tokens of anna (P-256, key 02) and ben (P-384, key 05), and their library."""

    config: Path
    library: Path

    def uri(self, name: str) -> str:
        number = {"anna": "%02", "ben": "%05"}[name]
        return f"pkcs11:token={name};id={number}?module-path={self.library}"


def softhsm(folder: Path) -> Tokens:
    """Make both tokens; the library reads the configuration when a process first loads it."""
    program = require_tool("softhsm2-util")
    library = next(
        (path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])), None
    ) or missing("the library libsofthsm2.so")
    config = folder / "softhsm2.conf"
    (folder / "tokens").mkdir()
    config.write_text(f"directories.tokendir = {folder}/tokens\nobjectstore.backend = file\n")

    def run(*words: str) -> None:
        done = subprocess.run(
            [program, *words],
            env={"SOFTHSM2_CONF": str(config)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    for (name, curve), number in zip(CURVES.items(), ("02", "05"), strict=True):
        run("--init-token", "--free", "--label", name, "--pin", PIN, "--so-pin", "12345678")
        pem = folder / f"{name}.pem"
        private = ec.generate_private_key(curve)
        pem.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        where = ("--token", name, "--label", name, "--id", number, "--pin", PIN)
        run("--import", str(pem), *where)
        pem.unlink()
    return Tokens(config, Path(library))
