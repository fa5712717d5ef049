"""The bundle's entry. Stands alone at the root of the zipapp, so it imports nothing of ours before it has unpacked.

Python caches no byte code of a zip: each start would compile everything again (0.2 s and 20 MB for pynvml alone). So
the zip unpacks itself once into a folder beside it, named by the same digest, and runs from there. Where that can't be
written (a full disk, a read-only state folder), it runs from the zip.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import tempfile
import zipfile


def unpacked(archive: str) -> str:
    """The folder to import from: the archive's own copy on disk, or the archive itself."""
    folder = os.path.splitext(archive)[0]
    try:
        if os.path.isdir(folder):
            entry = os.lstat(folder)
            return folder if entry.st_uid == os.getuid() and not entry.st_mode & 0o022 else archive
        aside = tempfile.mkdtemp(prefix=".unpacking-", dir=os.path.dirname(archive))
        try:
            with zipfile.ZipFile(archive) as bundle:
                bundle.extractall(aside)
            compileall.compile_dir(aside, quiet=2)  # now, not in each long-lived process: that would keep 20 MB of it
            os.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return folder
    except OSError:
        # Another process may have won the race for the same folder.
        return folder if os.path.isdir(folder) else archive


def main() -> int:
    if sys.version_info < (3, 8):
        sys.stderr.write("gpuctl: needs Python 3.8 or newer on the node, this is %s\n" % sys.version.split()[0])
        return 4
    archive = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, unpacked(archive))
    from gpuctl.node.verbs import run  # after the path is set: that is what this file is for

    return run([archive, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
