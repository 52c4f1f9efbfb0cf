"""How much of an artifact, from its start, is known to be what was signed."""

from __future__ import annotations

import hashlib

from tsuku_llm.manifest import Artifact


class WrongPiece(Exception):
    """The bytes from ``start`` to ``end`` are not the signed ones."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"{start} to {end}")
        self.start = start
        self.end = end


class Prefix:
    """The bytes of an artifact up to ``size``, hashed in order.

    Where the manifest has the digests of its pieces, each is compared as it ends, and the
    bytes up to ``verified`` may be used. Where it has none, ``verified`` is 0: nothing may
    be used before the whole was compared.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._pieces = artifact.pieces
        self.size = self.verified = 0
        self._whole = hashlib.sha256()
        self._sealed = self._whole.copy()
        self._piece = hashlib.sha256()

    def rewind(self) -> None:
        """Back to what is verified."""
        self.size = self.verified
        self._whole = self._sealed.copy()
        self._piece = hashlib.sha256()

    def update(self, chunk: bytes) -> None:
        """Append; raises ``WrongPiece``, having gone back to what is verified."""
        view = memoryview(chunk)
        while view:
            end = self._piece_end()
            part = view if end is None else view[: end - self.size]
            self._whole.update(part)
            self.size += len(part)
            view = view[len(part) :]
            if end is not None:
                self._piece.update(part)
                if self.size == end:
                    self._seal()

    def _piece_end(self) -> int | None:
        """Where the piece that is being hashed ends; None without pieces, or behind the last."""
        size = self._artifact.size
        if self._pieces is None or size is None or self.size >= size:
            return None
        return min(size, self.verified + self._pieces.size)

    def _seal(self) -> None:
        if self._pieces is None:
            return
        number = self.verified // self._pieces.size
        if self._piece.hexdigest() != self._pieces.sha256[number]:
            start, end = self.verified, self.size
            self.rewind()
            raise WrongPiece(start, end)
        self.verified = self.size
        self._sealed = self._whole.copy()
        self._piece = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The digest up to ``size``, as hexadecimal digits."""
        return self._whole.hexdigest()

    def matches(self) -> bool:
        """Whether what is there is the artifact, by the digest of the whole."""
        return self.sha256 == self._artifact.sha256 and self._artifact.size in (None, self.size)
