"""Unpack an artifact into a folder, and check every member before it is written.

The package knows no network and no store. The input is a verified file (or a stream of
verified bytes), the output is a list of the written files and links. Our own loops read the
containers, not ``tarfile`` or ``zipfile``. The checks of those differ between Python 3.10
and 3.14. The filters of ``tarfile`` do not protect (CVE-2025-4517) or are absent (3.11.2).
"""
