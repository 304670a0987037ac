"""One flush of a log: what it syncs, and in which order.

`Log.begin_flush` collects the work on the event loop, `run` does it on any thread, and
`Log.end_flush` records the result on the loop.
"""

from __future__ import annotations

from errno import EDQUOT, EMFILE, ENFILE, ENOSPC

from penstock.partition.epochs import EpochStart
from penstock.ports import Disk
from penstock.storage.checkpoints import (
    Checkpoint,
    encode_checkpoint,
    encode_epochs,
    write_atomic,
    write_unnamed,
)
from penstock.storage.files import LEADER_EPOCHS, LOG_CHECKPOINT, Handle


def lacks_descriptors(error: BaseException | None) -> bool:
    """Whether a file could not be opened because the process or the machine has too many open
    files.

    Only `open` fails in this way. Nothing was written, so the call can be repeated.
    """
    return isinstance(error, OSError) and error.errno in (EMFILE, ENFILE)


class FlushPlan:
    """The files to sync, and the checkpoint to write after them."""

    __slots__ = (
        "checkpoint",
        "directory",
        "dirty",
        "disk",
        "end_offset",
        "epochs",
        "handles",
        "indexed_offset",
        "passing",
        "unnoted",
    )

    def __init__(self, disk: Disk, directory: str, end_offset: int) -> None:
        self.disk = disk
        self.directory = directory
        self.end_offset = end_offset
        self.dirty: tuple[str, ...] = ()
        """The files that this flush syncs."""
        self.handles: list[Handle] = []
        self.passing: list[str] = []
        """Files that are not used again once they are on disk."""
        self.indexed_offset = 0
        self.unnoted = False
        """The data is synced, but the disk had no space for the checkpoint."""
        self.epochs: tuple[EpochStart, ...] | None = None
        self.checkpoint: Checkpoint | None = None

    def run(self) -> None:
        """Syncs everything. Blocking. The checkpoint is written last, because it vouches for all
        other files."""
        for handle in self.handles:
            handle.file.fsync()
        if self.checkpoint is None:
            return
        self.disk.sync_directory(self.directory)
        try:
            if self.epochs is not None:
                # The directory sync for the checkpoint makes this file's name durable too.
                epochs = encode_epochs(self.epochs)
                write_unnamed(self.disk, self.directory, LEADER_EPOCHS, epochs)
            data = encode_checkpoint(self.checkpoint)
            write_atomic(self.disk, self.directory, LOG_CHECKPOINT, data)
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            self.unnoted = True
