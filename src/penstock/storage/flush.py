"""What one flush of a log makes durable.

Gathered on the event loop (`Log.begin_flush`), done on any thread (`run`), accounted for on the
loop again (`Log.end_flush`).
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
    """Whether a file could not be opened because the process, or the machine, has too many open.

    Only `open` fails in this way, so no byte is lost by it: the call can be repeated.
    """
    return isinstance(error, OSError) and error.errno in (EMFILE, ENFILE)


class FlushPlan:
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
        """The files that this flush makes durable."""
        self.handles: list[Handle] = []
        self.passing: list[str] = []
        """Files nobody will use again once they are on disk."""
        self.indexed_offset = 0
        self.unnoted = False
        """The data is safe, but there was no room to write the checkpoint."""
        self.epochs: tuple[EpochStart, ...] | None = None
        self.checkpoint: Checkpoint | None = None

    def run(self) -> None:
        """Blocking. The checkpoint goes last: it vouches for all the others."""
        for handle in self.handles:
            handle.file.fsync()
        if self.checkpoint is None:
            return
        self.disk.sync_directory(self.directory)
        try:
            if self.epochs is not None:
                # Its name becomes durable with that of the checkpoint.
                epochs = encode_epochs(self.epochs)
                write_unnamed(self.disk, self.directory, LEADER_EPOCHS, epochs)
            data = encode_checkpoint(self.checkpoint)
            write_atomic(self.disk, self.directory, LOG_CHECKPOINT, data)
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            self.unnoted = True
