"""The first bytes of an artifact, hashed and compared with the signed digests."""

from __future__ import annotations

import hashlib

from tsuku_llm.catalog.manifest import Artifact


class WrongPiece(Exception):
    """A piece whose bytes, from ``start`` to ``end``, are not the signed ones."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"{start} to {end}")
        self.start = start
        self.end = end


class PieceVerifier:
    """The first ``size`` bytes of an artifact, hashed in order.

    If the manifest has digests of pieces, each piece is compared as soon as it is complete,
    and the first ``verified`` bytes can be used. Without them ``verified`` stays 0: no byte
    can be used before the whole is compared.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._pieces = artifact.pieces
        self.size = self.verified = 0
        self._whole = hashlib.sha256()
        # The hash at `verified`: rewind() returns to it, as a hash cannot be undone.
        self._sealed = self._whole.copy()
        self._piece = hashlib.sha256()

    def rewind(self) -> None:
        """Go back to the verified bytes; forget the hash of all others."""
        self.size = self.verified
        self._whole = self._sealed.copy()
        self._piece = hashlib.sha256()

    def update(self, chunk: bytes) -> None:
        """Hash the next bytes. Raises ``WrongPiece`` after going back to the verified bytes."""
        view = memoryview(chunk)
        while view:
            # A chunk can hold the end of one piece and the start of the next: split it there.
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
        """Compute where the current piece ends; None without pieces or after the last one."""
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
        """The SHA-256 of the first ``size`` bytes, as hexadecimal digits."""
        return self._whole.hexdigest()

    def matches(self) -> bool:
        """Return whether the hashed bytes are the artifact, by its size and whole digest."""
        return self.sha256 == self._artifact.sha256 and self._artifact.size in (None, self.size)
